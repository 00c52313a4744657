"""Published results that are measured again here, each as a study: arms, cases, the source's table, what follows."""
