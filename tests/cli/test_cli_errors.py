"""The table of errors: what a wrong command names in its one line on stderr, with exit code 2.

DATA is a small data set, RUN a trained run. Nothing is written by any of these commands.
"""

import shlex
from pathlib import Path

import pytest

from commands import Refused
from tiny import DATA

TRAIN = "train privrec --data DATA --out run"
EPSILON = "privacy epsilon --users 4800 --cohort 30 --rounds 9 --noise-multiplier 1"
CALIBRATE = "privacy calibrate --users 4800 --cohort 30 --rounds 9"
ATTACK = "attack --data DATA --recipes ease"
AUDIT = "audit dp-privrec-plus --data DATA"

ERRORS: dict[str, dict[str, str | list[str]]] = {
    "usage": {
        "train": "Missing argument 'RECIPE'; see 'privrec train --help'",
        "frobnicate": "No such command 'frobnicate'. Did you mean 'frontier'? See 'privrec --help'",
        "evalute runs/first": "Did you mean 'evaluate'?",
        "train privrec --nope": "No such option: --nope; see 'privrec train --help'",
        "data fetch --nope": "No such option: --nope; see 'privrec data fetch --help'",
        "train privrec --seed x": "'x' is not a valid integer; see 'privrec train --help'",
    },
    "settings": {
        f"{TRAIN} --set roundz=3": ["'roundz'", "did you mean 'rounds'?"],
        f"{TRAIN} --set out=here": "unknown key 'out'",
        f"{TRAIN} --set resume=true": "unknown key 'resume'",
        f"{TRAIN} --set on_progress=1": "unknown key 'on_progress'",
        f"{TRAIN} --set rounds=-1": "`rounds` must be >= 0; got -1",
        f"{TRAIN} --set rounds=many": ["`rounds`", "integer", "'many'"],
        f"{TRAIN} --set rounds=2.5": ["`rounds`", "2.5"],
        f"{TRAIN} --set cohort=0": "`cohort` must be >= 1; got 0",
        f"{TRAIN} --set cohort=47": ["`cohort` must be <= 46", "got 47"],
        f"{TRAIN} --set local_lr=nan": "`local_lr` must be a finite number; got nan",
        f"{TRAIN} --set server_lr=inf": ["`server_lr`", "inf"],
        f"{TRAIN} --set test_share=nan": ["`test_share`", "nan"],
        f"{TRAIN} --set validation_share=nan": ["`validation_share`", "nan"],
        f"{TRAIN} --set test_share=1": "`test_share` must be < 1; got 1",
        f"{TRAIN} --set dislike_target=1.01": "`dislike_target` must be <= 1; got 1.01",
        f"{TRAIN} --set hidden=[]": ["`hidden`", "[]"],
        f"{TRAIN} --set hidden=[4,0]": ["hidden", "must be >= 1; got 0"],
        f"{TRAIN} --set activation=rely": ["`activation`", "'relu'", "'rely'"],
        f"{TRAIN} --set target=rating": "`negatives`",
        f"{TRAIN} --set seed=-1": "`seed` must be >= 0; got -1",
        f"{TRAIN} --seed -1": "`seed` must be >= 0; got -1",
        f"{TRAIN} --set rounds": ["--set takes key=value", "'rounds'"],
        f"{TRAIN} --set =3": ["--set takes key=value", "'=3'"],
        f"{TRAIN} --set recipe=ease": ["`recipe` is given twice", "privrec", "ease"],
        f"{TRAIN} --set data=frappe": ["`data` is given twice", "frappe"],
        f"{TRAIN} --seed 1 --set seed=2": "`seed` is given twice",
        "train dp-privrec-one --epsilon 4 --set epsilon=3": "`epsilon` is given twice",
        "train privrec-plus --epsilon 4": "did you mean dp-privrec-plus, which has `epsilon`?",
        "train privrec-plus --set epsilon=4": "did you mean dp-privrec-plus, which has",
        "train privrec --set noise_multiplier=1": "did you mean dp-privrec, which has",
        "train ease --epsilon 4": "did you mean dpals, which has `epsilon`?",
        "train privrec --set ease_l2=3": "did you mean ease, which has `ease_l2`?",
        "train fcf --set subspace_rank=3": "which has `subspace_rank`?",
    },
    "names": {
        "train privrek": ["unknown recipe 'privrek'", "did you mean 'privrec'?"],
        "train dp-privrec-pluss": "did you mean 'dp-privrec-plus'?",
        "train Ease": "did you mean 'ease'?",
        "recipes dp-privrecc": "unknown recipe 'dp-privrecc'",
        "recipes eaze --json": "unknown recipe 'eaze'",
        "train privrec --data synthetik": "did you mean 'synthetic'?",
        "train privrec --data movielens1m": "did you mean 'movielens-1m'?",
        "train privrec --data synthetic:userz=9": "did you mean 'users'?",
        "train privrec --data synthetic:users=1": "`users` must be >= 2; got 1",
        "data describe zzz": ["'zzz'", "privrec data list"],
        "data describe zzz --json": "'zzz'",
        "data fetch movielens": "did you mean 'movielens-1m'?",
        "evaluate nowhere --json": "nowhere does not exist",
    },
    "wishes": {
        "recommend RUN --like 'The Silent Harbor'": ["Harbor'", "'The Silent Harbour'?"],
        "recommend RUN --dislike 'the goldn garden'": "did you mean 'The Golden Garden'?",
        "recommend RUN --like ''": "unknown item ''",
        "recommend RUN --like i1 --dislike i1": "'The Golden Harbour' was given more than once",
        "recommend RUN --like i1 --like 'the golden harbour'": "more than once",
        "recommend RUN --feature agee=18-29": ["unknown feature 'agee'", "did you mean 'age'?"],
        "recommend RUN --feature age=18-30": ["'18-30'", "did you mean '18-29'?"],
        "recommend RUN --feature genres=crime": "'genres' is a feature of items",
        "recommend RUN --feature age": "--feature takes key=value; got 'age'",
        "recommend RUN --feature age=18-29 --feature age=30-44": "'age' takes one value",
        "recommend RUN --top 0": "`top` must be >= 1; got 0",
        "recommend RUN --top -3": "`top` must be >= 1; got -3",
    },
    "lists of many": {
        "recommend RUN --everybody": "--everybody needs --out",
        "recommend RUN --out x.csv": "got none of them",
        "recommend RUN --everybody --newcomers n.csv --out x.csv": "--everybody and --newcomers",
        "recommend RUN --everybody --like 3 --out x.csv": "--like and --everybody",
        "recommend RUN --everybody --out x.json": "must end in .parquet or .csv; got 'x.json'",
        "recommend RUN --everybody --top 0 --out x.csv": "`top` must be >= 1; got 0",
    },
    "experiments": {
        "compare": "give either run folders or --data",
        "compare run --data DATA": "give either run folders or --data",
        "compare --data DATA --recipes dpal": "did you mean 'dpals'",
        "compare --data DATA --recipes ease --seeds -1": "`seeds` must be >= 0",
        "compare --data DATA --recipes ease --seeds a": "`seeds` must be whole numbers",
        "compare --data DATA --recipes ease --epsilons 0": "`epsilons` must be > 0",
        "compare --data DATA --recipes 'popularity, fcf'": "fcf: `cohort` must be <= ",
        "compare --data DATA --seeds 0,1,0": "`seeds` has 0 twice",
        "frontier --data DATA --seeds 0,1,0": "`seeds` has 0 twice",
        "frontier --data DATA --epsilons 0,3": "`epsilons` must be > 0, or inf; got [0.0, 3.0]",
        "frontier --data DATA --epsilons nan": "`epsilons` must be > 0, or inf; got [nan]",
        "frontier --data DATA --epsilons two": "`epsilons` must be numbers with commas; got 'two'",
        "frontier --data DATA --epsilons ''": "`epsilons` must be numbers with commas; got ''",
        "frontier --data DATA --seeds 0.5": "must be whole numbers with commas; got '0.5'",
        "frontier --data DATA --seeds -1": "`seeds` must be >= 0; got -1",
        "frontier --data DATA --delta 2": "`delta` must be < 1; got 2.0",
        "frontier --data synthetik": "did you mean 'synthetic'?",
    },
    "privacy": {
        f"{EPSILON} --noise-multiplier -1": "`noise_multiplier` must be 0, or >= 1e-06",
        f"{EPSILON} --noise-multiplier nan": "`noise_multiplier` must be 0, or >= 1e-06",
        f"{EPSILON} --noise-multiplier 1e308": "and <= 1e+06",
        f"{EPSILON} --noise-multiplier 1.1e6 --mechanism laplace": "and <= 1e+06",
        f"{EPSILON} --noise-multiplier 9e-7 --mechanism laplace": "must be 0, or >= 1e-06",
        f"{EPSILON} --noise-multiplier 1e-200": "must be 0, or >= 1e-06",
        f"{EPSILON} --delta 0": "`delta` must be > 0 and < 1",
        f"{EPSILON} --delta 1.5": "`delta` must be > 0 and < 1",
        f"{EPSILON} --sampling x": "'poisson' or 'fixed'; got",
        f"{EPSILON} --mechanism x": "'gaussian' or 'laplace'",
        f"{EPSILON} --cohort 5000": "`cohort` must be <= 4800",
        f"{EPSILON} --rounds -1": "-1 is not in the range x>=1",
        f"{CALIBRATE} --epsilon 0": "`epsilon` must be > 0; got 0.0",
        f"{CALIBRATE} --epsilon -2": "`epsilon` must be > 0; got -2.0",
        f"{CALIBRATE} --epsilon nan": "`epsilon` must be > 0; got nan",
        f"{CALIBRATE} --epsilon 1 --rounds 0": "0 is not in the range x>=1",
        "privacy epsilon --users 10 --cohort 5": "give --users, --cohort and --noise-multiplier",
    },
    "attack": {
        f"{ATTACK} --kinds ration": "did you mean 'ratio'",
        "attack --data DATA --recipes eas": "did you mean 'ease'",
        "attack --data DATA": "--data needs --recipes",
        "attack nowhere": "nowhere does not exist",
        f"{ATTACK} run": "give either run folders or --data",
        f"{ATTACK} --repetitions 0": "`repetitions` must be >= 1; got 0",
        f"{ATTACK} --shadows 3": "`shadows` must be >= 4; got 3",
        f"{ATTACK} --repetitions 17": "`repetitions` must be <= `shadows`",
        f"{ATTACK} --workers 0": "`workers` must be >= 1; got 0",
        f"{ATTACK} --seed -1": "`seed` must be >= 0; got -1",
        f"{ATTACK} --set protocol=files": "`protocol` cannot be set",
        f"{ATTACK} --set ease_l3=1": "unknown key 'ease_l3'",
        "attack --data DATA --recipes dpals --set epsilon=1": "given by --epsilons",
        "attack --data DATA --recipes dpals --epsilons 0": "`epsilons` must be > 0",
        "attack --data synthetic:users=29,items=40 --recipes ease": "at least 30 people; got 29",
        # The last of several recipes is checked before the first is trained.
        "attack --data DATA --recipes ease,popularity --set ease_l2=3": "unknown key 'ease_l2'",
    },
    "audit": {
        "audit dp-privrec-plsu --data DATA": "did you mean 'dp-privrec-plus'",
        f"{AUDIT} --canaries 3": "`canaries` must be >= 20; got 3",
        f"{AUDIT} --canaries 1000000000": "for which the free memory is enough; got 1,000,000,000",
        f"{AUDIT} --confidence 1.5": "`confidence` must be > 0.5 and < 1; got 1.5",
        f"{AUDIT} --set seed=3": "an audit sets `seed` itself",
        f"{AUDIT} --epsilon -1": "epsilon",
        f"{AUDIT} --out page.html": "--out must end in .json",
    },
}


@pytest.mark.parametrize(
    ("command", "words"),
    [pytest.param(*row, id=row[0]) for kind in ERRORS.values() for row in kind.items()],
)
def test_an_error_is_one_line_that_names_the_value(
    command: str, words: str | list[str], refused: Refused, request: pytest.FixtureRequest
) -> None:
    run = request.getfixturevalue("trained") if " RUN" in command else Path()
    given = {"DATA": DATA, "RUN": str(run)}
    line = refused(*(given.get(word, word) for word in shlex.split(command)))
    for word in [words] if isinstance(words, str) else words:
        assert word in line
