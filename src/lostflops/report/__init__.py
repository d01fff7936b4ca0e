"""Shows what the recipes found: one module per output. Recipes compute, this package draws."""
