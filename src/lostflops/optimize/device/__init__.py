"""What remedies need of device, host and the link between them: streams, memory, rates, and shares."""
