"""Matrix products: blocks, tiles, copies into panels, epilogues."""
