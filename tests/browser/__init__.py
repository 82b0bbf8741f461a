"""The pages in a real browser: the system's Chromium, driven by Playwright. `make test-web` runs these tests."""
