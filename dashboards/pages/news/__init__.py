"""What happened, for people who do not look every day: weekly reports, Atom feeds and badges."""
