"""The usual names of columns, which need no mapping."""

import re
from typing import Literal

_THINGS = (
    *("movie", "product", "book", "song", "track", "artist", "business", "article", "news", "app"),
    *("film", "game", "video", "show", "recipe", "poi", "venue", "place", "location", "hotel"),
    *("restaurant", "content", "goods", "podcast", "anime", "joke", "course", "beer", "sku"),
)
_PEOPLE = (
    *("customer", "member", "reviewer", "visitor", "person", "client", "account", "profile"),
    *("player", "subscriber", "viewer", "listener", "reader", "buyer", "shopper"),
)
_MOMENTS = (
    *("time", "timestamp", "ts", "unixtime", "datetime", "date", "eventtime", "eventtimestamp"),
    *("eventts", "eventdate", "unixtimestamp", "epoch", "epochtime", "createdat", "createdon"),
    *("created", "createdtime", "creationtime", "creationdate", "occurredat", "loggedat"),
    *("ratedat", "watchedat", "playedat", "clickedat", "viewedat", "purchasedat", "orderedat"),
    *("reviewedat", "visitedat", "ratingtime", "reviewtime", "unixreviewtime", "reviewdate"),
    *("orderdate", "purchasedate", "orderpurchasetimestamp", "checkintime", "interactiontime"),
    *("invoicedate", "ordertime", "purchasetime", "transactiondate", "transactiontime", "addedat"),
    *("clicktime", "playtime", "starttime", "startedat", "starttimestamp"),
)
_UNITS = ("", "ms", "millis", "milliseconds", "s", "sec", "seconds", "us", "micros", "utc", "unix")

ALIASES: dict[str, tuple[str, ...]] = {
    "user": (
        *("user", "userid", "uid", "customerid", "memberid", "reviewerid", "visitorid"),
        *(f"{who}id" for who in _PEOPLE),
        *("userkey", "username", "userhash", *_PEOPLE),
    ),
    "item": (
        *("item", "itemid", "iid", "movieid", "productid", "bookid", "isbn", "songid", "trackid"),
        *("artistid", "parentasin", "asin", "businessid", "articleid", "newsid", "appid"),
        *(f"{what}id" for what in _THINGS),
        *("stockcode", "productcode", "itemcode", "productsku", *_THINGS),
    ),
    "value": (
        *("value", "rating", "score", "stars", "overall", "label"),
        *("ratings", "userrating", "bookrating", "movierating", "reviewrating", "reviewscore"),
        *("starrating", "ratingvalue", "ratingscore"),
    ),
    "time": tuple(f"{moment}{unit}" for unit in _UNITS for moment in _MOMENTS),
    "id": ("id",),
    "title": ("title", "name", "movietitle", "itemtitle", "itemname"),
}
"""Column names that need no mapping, preferred names first, as `plain_column` writes them."""

Role = Literal["user", "item", "value", "time"]
ROLES: tuple[Role, ...] = ("user", "item", "value", "time")
"""The columns of an interactions file that are read; others are only its context."""

SURE_TIMES = ("time", "timestamp", "ts", "unixtime", "datetime", "date")
"""A column of such a name must hold times. One of another name is a time only if it looks so."""


def plain_column(name: str) -> str:
    """Return a column's name without case, spaces, `_`, `-` and `.`.

    >>> plain_column("Event_Time-ms")
    'eventtimems'
    """
    return re.sub("[ _.-]", "", name.casefold())
