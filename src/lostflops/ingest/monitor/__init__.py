"""What `lostflops monitor` sampled, to the table `counters`: `reader` is the way in."""
