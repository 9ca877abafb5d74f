"""Cost of transfer: bytes, rounds without training, load, beside a bare exchange and Flower."""
