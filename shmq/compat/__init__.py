"""Other packages' APIs over shmq, for programs that move: `shmq.compat.rocketmq`."""
