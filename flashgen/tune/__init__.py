"""The funnel: from every config of a family to the one that a file holds, with the proof and the timings behind it."""
