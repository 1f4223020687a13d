"""A fleet's captures: thousands of files analysed on Dask into one Parquet data set, the LAKE.

``streams`` lists the captures, ``stream_tables`` makes the rows of one, ``lake`` has them on disk, ``run``
spreads the work over Dask, ``witnesses`` finds captures of the same traffic, ``judgement`` says which hosts
stand out, ``query`` asks, ``page`` draws.
"""
