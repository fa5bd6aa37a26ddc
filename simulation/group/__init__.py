"""A group of nodes that copy one journal, while machines, links, disks, clocks and etcd fail."""
