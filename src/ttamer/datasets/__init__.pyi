from ttamer.datasets import streams as streams
from ttamer.datasets.loading import (
    Part as Part,
)
from ttamer.datasets.loading import (
    Sample as Sample,
)
from ttamer.datasets.loading import (
    about as about,
)
from ttamer.datasets.loading import (
    describe as describe,
)
from ttamer.datasets.loading import (
    export as export,
)
from ttamer.datasets.loading import (
    load as load,
)
from ttamer.datasets.loading import (
    messages as messages,
)
from ttamer.datasets.loading import (
    names as names,
)
from ttamer.datasets.loading import (
    strings as strings,
)
