"""An analysis as a timeline for other tools: Perfetto's traces and qlog."""
