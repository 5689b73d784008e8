"""Names that are still imported from here."""

from ttamer.show.graph import Arrow as Arrow, Box as Box, draw_graph as draw_graph
