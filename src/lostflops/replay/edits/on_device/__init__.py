"""What if kernels and copies took other times, ran elsewhere, or were more or fewer."""
