"""Recording in pods: patched manifests, the webhook that patches them, and the collector of results."""
