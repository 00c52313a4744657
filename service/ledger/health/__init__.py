"""What pages and notifications about many runs read: sums that are written once, and what needs a person."""
