"""What network cards, switches and links carried, who sent how much to whom, and which collectives
straggle."""
