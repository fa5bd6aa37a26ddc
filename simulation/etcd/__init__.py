"""An etcd in the simulator: the JSON gateway of a linearizable store, served by members on machines of their own."""
