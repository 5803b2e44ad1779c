-- Grain: one row per setting, axis on which its layouts differ, and layout.
-- Needs: worded_choices
-- What the layout chooses on that axis, in words and as a level that can be ordered.
-- axis: its title in tables.   axis_order: the order in which people name the axes.
-- level: the choice.   place: position of the level on its axis.
-- words, short: the choice in a sentence and in a chart; null where it goes without saying.
-- otherwise: what a chart shows where only the other layouts' choice has to be named.
-- degree: the axis is a number of ranks, which stands on the first line of a chart's label.
select * exclude (plain, alone, differs)
from worded_choices
where differs
