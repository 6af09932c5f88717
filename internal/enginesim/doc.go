package enginesim
