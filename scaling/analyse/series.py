"""Where a value is from, and of which of them a report speaks where a setting has several.

Where short steps were extended, full ones ran at a few points only, to check them; what ran here
goes before what others published, and that before what nobody ran. SQL has the order as variable
`series_order`.
"""

from typing import Literal, get_args

Series = Literal["extended", "measured", "published", "predicted"]
SERIES: tuple[Series, ...] = get_args(Series)
