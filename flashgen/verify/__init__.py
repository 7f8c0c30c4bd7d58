"""Shows that a kernel is exact attention, or says which probe it fails and by how much."""
