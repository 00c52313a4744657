"""How notices leave: signed webhooks of our own, and Apprise for chats and mail."""
