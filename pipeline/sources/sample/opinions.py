"""What the sample's reviews say: products with their parts, praised or blamed, and ways to say it.

A line "lid: praise|praise / blame|blame" is a part of a product and what may be said of it. In a
sentence {own} is a clause of the reviewer's own opinion ("the lid closes with a soft click" in a
good review), {opp} one of the opposite kind; {own_} begins with a capital. The sentences of TURNS
serve good and bad reviews alike, so there only the order of things tells what the reviewer thinks.
"""

from dataclasses import dataclass

from pipeline.sources.sample.words import words


@dataclass(frozen=True)
class Part:
    """A part of a product, and the clauses that blame (0) or praise (1) it."""

    clauses: tuple[tuple[str, ...], tuple[str, ...]]


@dataclass(frozen=True)
class Product:
    nouns: tuple[str, ...]
    parts: tuple[Part, ...]


def read_product(text: str) -> Product:
    """The first line names the product, each other line a part of it."""
    names, *lines = text.strip().splitlines()
    return Product(words(names), tuple(read_part(line) for line in lines))


def read_part(line: str) -> Part:
    """'lid: closes well / jams|leaks' -> blame (the lid jams, the lid leaks), praise (...)."""
    name, _, claims = line.strip().partition(": ")
    praise, blame = (words(claim) for claim in claims.split(" / "))
    blames, praises = (tuple(f"the {name} {c}" for c in claim) for claim in (blame, praise))
    return Part((blames, praises))


PRODUCTS = tuple(
    read_product(text)
    for text in (
        """novel|book|thriller
        plot: keeps you up at night|is full of surprises / drags from the start|makes little sense
        ending: moves you to tears|ties everything together / falls flat|feels rushed
        heroine: feels alive|grows with every chapter / stays a cliché|is simply annoying
        writing: sparkles|is clear and elegant / is clumsy|reads like a school essay
        print: is large and sharp|is easy on the eyes / is tiny|is smudged on many pages
        dialogue: sounds real|is very funny / sounds wooden|goes on for ever""",
        """film|movie|DVD
        story: grips you|unfolds beautifully / is boring|has holes everywhere
        acting: is superb|touches the heart / is stiff|is painful to watch
        picture: looks stunning|is crisp / looks grainy|is far too dark
        music: fits perfectly|stays in the ear / drowns the voices|is dreadful
        director's cut: adds a lot|is worth every minute / adds nothing|is missing scenes
        pace: never lets up|is just right / is terribly slow|sends you to sleep""",
        """album|CD|record
        singing: gives you goosebumps|is warm and strong / is off key|grates on the nerves
        mix: is balanced|lets every instrument breathe / is muddy|hurts at high volume
        opening song: is brilliant|grabs you at once / is dull|sounds like a demo
        cover: is gorgeous|comes with a lovely booklet / arrived bent|looks cheap
        guitar work: is inspired|shines / is sloppy|is lost in noise
        live track: captures the mood|is a treat / sounds hollow|breaks off early""",
        """headset|wireless headset|gaming headset
        bass: is deep and clean|is impressive / rattles|is thin
        battery: lasts for days|charges quickly / dies after an hour|hardly charges
        fit: is comfortable|is snug / hurts the ears|is loose
        microphone: is clear|picks up every word / crackles|cuts out
        connection: is rock solid|works instantly / drops constantly|fails in the next room
        cable: feels sturdy|never tangles / broke within weeks|is far too short""",
        """kettle|electric kettle|water boiler
        lid: closes with a soft click|opens smoothly / jams half the time|leaks steam
        spout: pours neatly|never drips / dribbles everywhere|splashes
        handle: stays cool|is well shaped / gets hot|wobbles
        switch: works every time|has a nice glow / failed after a week|sticks
        body: looks elegant|wipes clean easily / rusts inside|smells of plastic
        timer: is accurate|is simple / beeps all night|is useless""",
        """running shoe|hiking boot|sneaker
        sole: grips well|cushions every step / came off|is slippery when wet
        leather: is soft|ages beautifully / cracked quickly|is fake
        stitching: is flawless|holds tight / came undone|is crooked
        size: is true|fits like a glove / runs small|is simply wrong
        lining: keeps the feet dry|is cosy / tore at the heel|makes the feet sweat
        colour: is rich|matches the photo / faded in a month|stained the socks""",
        """backpack|travel bag|suitcase
        zip: glides|feels solid / split open|gets stuck
        strap: is padded|spreads the weight / snapped|cuts into the shoulder
        main pocket: swallows everything|is cleverly divided / is cramped|lost its shape
        fabric: keeps out the rain|is tough / ripped on day two|soaks through
        wheel set: rolls silently|handles cobbles / squeaks|came loose
        lock: is safe|is easy to set / opened by itself|jammed at the airport""",
        """coffee maker|espresso machine|coffee machine
        coffee: tastes wonderful|comes out hot / tastes burnt|is watery
        pump: is quiet|builds good pressure / whines|gave up in March
        water tank: is generous|slides out easily / leaks|is hard to fill
        milk frother: makes silky foam|is quick / spits|clogs daily
        display: is easy to read|is bright / froze|shows random errors
        cleaning: takes a minute|is a breeze / is a nightmare|takes for ever""",
        """tablet|phone|e-reader
        screen: is gorgeous|responds at once / flickers|scratches easily
        camera: takes lovely pictures|focuses fast / is blurry|lags
        software: runs smoothly|is a joy / crashes|is full of adverts
        charger: is fast|is compact / overheats|stopped working
        speaker: is surprisingly rich|fills the room / buzzes|is barely audible
        casing: feels premium|survived a fall / creaks|bends""",
        """board game|puzzle|card game
        rule book: is clear|is fun to read / is confusing|contradicts itself
        artwork: is charming|delights the children / is ugly|is misprinted
        board: is thick|folds flat / warped|peels at the edges
        game play: is exciting|gets better each time / is tedious|is pure luck
        box: is well organised|looks great on a shelf / arrived crushed|had pieces missing
        theme: draws you in|is original / feels pasted on|wore off fast""",
        """garden chair|desk chair|armchair
        seat: is comfy|supports the back / sags|is rock hard
        frame: is solid|does not move an inch / bent|creaks
        assembly: took ten minutes|was child's play / was torture|took all evening
        cushion: is plush|washes well / went flat|sheds feathers
        finish: is smooth|looks expensive / flakes off|gives you splinters
        armrest: is at the right height|is nicely padded / fell off|is too low""",
        """face cream|shampoo|hand lotion
        scent: is fresh|lingers pleasantly / is sickening|is overpowering
        texture: is silky|sinks in quickly / is greasy|is lumpy
        effect: shows within days|lasted all winter / is nil|wore off in an hour
        bottle: is practical|doses well / leaked in the post|was half empty
        formula: calms dry skin|is gentle / causes a rash|stings
        pump top: works like a dream|is neat / broke off|clogs""",
    )
)

#: neutral: who, when, why
CONTEXT = words(
    "I bought this {noun} for my {relative} in {month}.|We have had it for {count} months now."
    "|It replaced an old {noun} from another maker."
    "|I chose the {brand} after reading {count} reviews."
    "|It arrived on a {weekday}, two days after I ordered it.|My {relative} has the same one."
    "|This is my {nth} {noun} from {brand}.|I use it nearly every day."
    "|I paid about {price} dollars for it."
    "|My {relative} asked for a {brand}, so that is what I ordered."
    "|I took it along on a trip in {month}.|I have tried {count} others before."
    "|It was a present from my {relative}."
)

#: one's own opinion, plainly
OWN = words(
    "{own_}.|{own_}, that much is clear.|I find that {own}.|Above all, {own}.|Honestly, {own}."
    "|{own_}, as my {relative} says too.|As far as I can tell, {own}.|I noticed at once that {own}."
)

#: one's own opinion, plainly, with a grain of the other side
CONCESSION = words(
    "True, {opp}.|One small thing on the other side: {opp}.|To be fair, {opp}.|I admit that {opp}."
)

#: the other side first, then one's own: who does not heed the order is misled
TURNS = words(
    "{opp_}, but {own}.|Although {opp}, {own}.|{own_}, even though {opp}.|{opp_}. Still, {own}."
    "|{opp_}, yet what counts for me is that {own}.|Yes, {opp}. That hardly matters, because {own}."
    "|My {relative} keeps saying that {opp}; all the same, {own}."
    "|{own_}. That {opp} changes nothing.|What if {opp}? In the end {own}."
)

#: the other side, only to be denied
DENIALS = words(
    "I was told that {opp}. Not so.|Other people write that {opp}. I see nothing of the kind."
    "|People claim that {opp}; with mine the contrary is true."
    "|It is simply not the case that {opp}."
    "|My {relative} swore that {opp}. Well, it is the other way round.|Who says that {opp}? Not me."
    "|I had read everywhere that {opp}, which is wrong."
)

#: verdicts, bad (0) and good (1)
VERDICTS = (
    words(
        "What a terrible {noun}.|A waste of money.|I am very disappointed.|I hate this {noun}."
        "|Terrible quality, stay away.|It is awful, and I want a refund."
        "|I wanted to love it, but I can't.|I sent it back and want a refund.|Not good at all."
        "|I am not happy with it."
        "|I would not recommend it to anybody.|A poor {noun}, and a waste of money."
        "|It could have been great, but it is awful.|I expected much more from {brand}."
        "|It is not worth half the price.|Nothing about it is as good as the advert says."
    ),
    words(
        "What a great {noun}.|Worth every cent.|I am very happy with it.|I love this {noun}."
        "|Excellent quality, highly recommended.|It is excellent, and I would buy it again."
        "|I was afraid I would hate it, but I love it.|I would buy it again and recommend it."
        "|Not bad at all.|I am not disappointed in the least.|I recommend it to everybody."
        "|A great {noun}, and worth every cent.|It could have been awful, but it is great."
        "|I did not expect so much from {brand}.|It is worth twice the price."
        "|Nothing about it is as bad as some people say."
    ),
)

#: titles, bad (0) and good (1), and those that do not tell
TITLES = (
    words(
        "Terrible|Disappointed|Waste of money|Awful {noun}|Not good|Poor quality|Not worth it"
        "|Stay away|I hate it|Looks great, is awful"
    ),
    words(
        "Great|Very happy|Worth every cent|Excellent {noun}|Not bad at all|Excellent quality"
        "|Worth it|Highly recommended|I love it|Looks awful, is great"
    ),
)
NEUTRAL_TITLES = words(
    "My {noun} from {brand}|After {count} months|{brand} {noun}: my review|Read this before you buy"
    "|For my {relative}|An honest opinion|About this {noun}|Not what I had read"
    "|{count_} weeks later|Bought in {month}|What my {relative} did not tell me"
    "|Two sides of the {brand}|Surprised"
)

RELATIVES = words(
    "mother|father|sister|brother|wife|husband|daughter|son|neighbour|best friend|boss|aunt"
    "|grandson"
)
WEEKDAYS = words("Monday|Tuesday|Wednesday|Thursday|Friday|Saturday")
ORDINALS = words("first|second|third|fourth")
BRAND_HEADS = words(
    "Vel|Nor|Zen|Kor|Lum|Bri|Tav|Sol|Mar|Pex|Ard|Hal|Quin|Ost|Fen|Ryl|Dex|Cal|Jor|Wex"
)
BRAND_ENDINGS = words("mora|tek|ena|ix|on|ara|ley|una|ado|is|ell|ware|ité|øn|via|co")

#: the order of things in a review: sentences that speak plainly ...
PLAIN_PLANS = tuple(
    plan.split()
    for plan in (
        "own verdict",
        "verdict own",
        "context own verdict",
        "verdict context own own",
        "context own own verdict",
        "own concession verdict",
        "context own concession own verdict",
        "context verdict own context own",
        "own context own concession verdict context",
        "context own context own own concession verdict",
    )
)
#: ... and those where order and negation decide
TURNING_PLANS = tuple(
    plan.split()
    for plan in (
        "context turn",
        "turn turn",
        "turn context",
        "context denial turn",
        "denial denial",
        "context turn turn",
        "denial context turn context",
        "turn context turn denial",
    )
)
