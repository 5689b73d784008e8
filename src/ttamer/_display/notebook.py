from ttamer.show import card as card
