"""What the model servers say of themselves: scraping their metrics pages, per engine, with ages."""
