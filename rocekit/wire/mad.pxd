# The types of mad.py where it is compiled; see setup.py.
cimport cython


@cython.locals(data=bytes, header=bytes)
cpdef object parse_mad(object payload)
