"""What became of the ranks: watched while they live, judged when they are gone."""
