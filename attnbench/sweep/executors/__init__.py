"""Where cells are measured: on this machine, or on the nodes of a cluster.

An executor takes a sweep's turns, asks for the jobs of each at the moment it begins, and yields the records of every job.
"""
