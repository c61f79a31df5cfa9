from benchmarks import ours
if __name__=="__main__":
    import sys
    for _ in range(2):
        print("spin", ours.latency(20000, spinning=True), flush=True); print("block", ours.latency(20000), flush=True)
        print("1M copy", ours.latency(400,size=1<<20), flush=True); print("1M view", ours.latency(400,size=1<<20,in_place=True), flush=True)
