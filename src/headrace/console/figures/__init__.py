"""Figures of brokers: sampled once for all watchers, and kept for two weeks."""
