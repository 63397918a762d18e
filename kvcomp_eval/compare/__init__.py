"""Run a grid of methods, budgets and tasks on one loaded model; leaderboard, report and regression gate."""
