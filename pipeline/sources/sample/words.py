"""The words of the built-in sample: invented countries, the sound of their names, and small lists.

Names are made of syllables, in one of six styles; a country has a style and eight regions of its
own. So a reader can learn that Vik is in the north before it has met the town at hand, while the
names themselves hardly ever repeat.
"""

# ruff: noqa: RUF001 (letters such as a dotless i are meant)

from dataclasses import dataclass


def words(text: str) -> tuple[str, ...]:
    """The alternatives in a text: "red|blue" gives ("red", "blue")."""
    return tuple(word.strip() for word in text.split("|"))


@dataclass(frozen=True)
class Style:
    """How names sound in a part of the invented world: head + middle + ending."""

    heads: tuple[str, ...]
    middles: tuple[str, ...]
    towns: tuple[str, ...]
    rivers: tuple[str, ...]
    surnames: tuple[str, ...]
    women: tuple[str, ...]
    men: tuple[str, ...]


def style(
    heads: str, middles: str, towns: str, rivers: str, last: str, women: str, men: str
) -> Style:
    split = (tuple(part.split()) for part in (heads, towns, rivers, last, women, men))
    first, *others = split
    return Style(first, ("", *middles.split()), *others)


STYLES = (
    style(  # northern
        "Arn Bjark Bran Dag Eld Fal Frøs Grim Hal Hög Isk Jarl Kal Lind Mør Nor Øst Rag Ros Sig"
        " Skar"
        " Sol Stav Sund Tor Ulv Var Vest Vind Ås",
        "a e el en er i und al",
        "vik stad havn dal by sund nes holm lund fors mark tuna voll strand",
        "a elva åna inga ån ja",
        "son sen qvist gren ström dahl stad vik berg lund nes mo",
        "Astrid Birgit Elin Freja Greta Hilde Inga Karin Linnéa Maja Randi Sigrid Solveig Åse",
        "Anders Bjørn Einar Erik Gustav Håkon Jens Lars Magnus Nils Olav Rune Søren Torsten",
    ),
    style(  # central
        "Alt Brand Buch Dorn Eich Eis Falk Gold Grün Hag Hart Hirsch Hohen Kalt Königs Lauter"
        " Linden"
        " Mühl Neu Ober Reich Rosen Schön Schwarz Stein Tann Wald Weiß Wolfs Zell",
        "en el er ing ach lin au in",
        "burg heim dorf bach feld stadt hausen furt brück tal kirchen rode werder moos",
        "a ach ent au isar er",
        "mann er bauer meyer hofer wald ing brandt ler stein lich berger",
        "Anna Berta Clara Elsa Friederike Gisela Hannah Johanna Käthe Lotte Margarete Sophie Ulla",
        "Albrecht Bernd Dieter Ernst Friedrich Georg Heinrich Jürgen Karl Otto Rüdiger Ulrich Wolf",
    ),
    style(  # eastern
        "Bel Bor Brod Čern Dobr Drah Gor Gród Hrad Jaz Kam Kras Lip Łom Lub Mir Mor Nov Ostr"
        " Pod Rad"
        " Sław Smol Star Svet Tarn Vel Vis Zlat Žel",
        "o i a ov in en ej ol",
        "grad ice nik sk lin zna dol pol ec owa brod ina any vec",
        "va ica na awa ra avka",
        "ović ski enko ák ovec ič ński in uk ka ar ný",
        "Agnieszka Božena Danica Eva Halina Irena Jadwiga Ljuba Milena Nadia Olga Zdeňka Zofia"
        " Vera",
        "Andrej Bogdan Dušan František Ivan Jan Józef Lev Marek Nikola Pavel Stanisław Tomáš"
        " Viktor",
    ),
    style(  # southern
        "Alb Arb Bel Cal Cand Carp Cas Cor Est Fer Font Gal Guad Lor Lum Mal Mar Mont Nav Oliv Pal"
        " Per Quint Ram Sal Serr Tor Val Verd Vill",
        "a e o an er in am en",
        "ona illa ñera mar eda ante osa rín ada eto enza ola cia ares",
        "o ella ona ira ezza ío",
        "ez ini ado etti eiro ón ano ales era osa oni ardo",
        "Alba Beatriz Carmen Chiara Élise Francesca Inês Isabel Lucía Marina Núria Paola Rosa"
        " Teresa",
        "Álvaro Bruno Carlos Diego Emilio Félix Giulio Hugo José Luca Marco Paulo Rafael Vicente",
    ),
    style(  # western
        "Ash Aber Bal Black Brad Car Clon Cold Dun East Fair Glen Hart Kil Lang Llan Mal Mel"
        " Nant Oak"
        " Pen Port Rath Red Strath Thorn Tre West Whit Wood",
        "a en er ing el in ar y",
        "ford ton mouth combe dale leigh wick more bury haven bridge field wyn gate",
        "ey on e yth enn am",
        "son ley worth man well ton bourne shaw croft ard ings more",
        "Agnes Alice Bronwen Catherine Edith Eleanor Fiona Harriet Maeve Mary Niamh Rhian Siân Zoë",
        "Alfred Arthur Brendan Cormac David Edmund Gareth Henry Hugh James Owen Robert Seán Thomas",
    ),
    style(  # far
        "Ab Ak Alt Bağ Bay Dem Dil Erz Far Gül Ham Ilg Kar Kız Mer Nar Orh Pash Qar Sar Şah Sul"
        " Tash"
        " Tek Tur Uz Yen Zar Zeyn Çel",
        "a e i ı u an ar ek",
        "abad köy hisar kent dağ tepe bul şehir pınar kale mir van gan zar",
        "su çay ab en ya ur",
        "oğlu zade yan kaya ov demir i soy can bek er oglu",
        "Aylin Aziza Defne Elif Farida Gülnar Leyla Meryem Nadira Parisa Shirin Yasemin Zeynep"
        " Zhanna",
        "Ahmet Bakhtiyar Cemal Daniyar Emre Farhad Hasan İlker Kerim Murat Nazim Orhan Rustam"
        " Timur",
    ),
)

#: country, its adjective, its eight regions; two countries to a style, in the order of STYLES
COUNTRIES = (
    ("Skandria", "Skandrian", "Nordmark|Vestria|Isfold|Østerland|Hallmark|Runland|Kaldor|Sørfold"),
    (
        "Fjelland",
        "Fjellandic",
        "Upper Fjell|Trollheim|Vinterland|Askerland|Brenmark|Lysøy|Tverr|Holm",
    ),
    ("Rhenia", "Rhenian", "Lower Rhenia|Grünwald|Hessau|Thurgen|Salzgau|Oberland|Weidach|Nordgau"),
    (
        "Austmark",
        "Austmarkian",
        "Ostgau|Königsland|Steier|Tannach|Burgenau|Marchen|Kärnberg|Elbgau",
    ),
    ("Moravena", "Moravenian", "Podoria|Krasnia|Zlatovia|Tarnów|Lubania|Gorica|Upper Drava|Vistra"),
    ("Velika", "Velikan", "Bukovar|Dolina|Slavena|Černia|Ostrova|Polesia|Hradec|Rudnik"),
    (
        "Castria",
        "Castrian",
        "Alcanta|Montera|Valdoro|Serrana|Las Peñas|Ribera|Lower Castria|Marisma",
    ),
    ("Lusania", "Lusanian", "Belmonte|Alentara|Douria|Fontana|Costa Verde|São Bento|Lombara|Piana"),
    (
        "Brennia",
        "Brennian",
        "Carrick|Glenshire|Westmoor|Kernow|Lorne|Marchshire|Dale|North Brennia",
    ),
    ("Dunmoria", "Dunmorian", "Clare|Strathmar|Ulland|Penmark|Woldshire|Argale|Ormond|Fenland"),
    ("Karastan", "Karastani", "Altıntaş|Qarabel|Turgan|Sarıova|Upper Kara|Zarafan|Yedisu|Khorez"),
    ("Anadoria", "Anadorian", "Lydara|Gülova|Pontara|Cilara|Akdere|Bozdağ|Ispar|Eastern Anadoria"),
)

DIRECTIONS = words("north|north-east|east|south-east|south|south-west|west|north-west")
MONTHS = words(
    "January|February|March|April|May|June|July|August|September|October|November|December"
)
SAINTS = words("Anne|Barbara|Clement|George|James|Luke|Martin|Mary|Nicholas|Olaf|Peter|Ursula")
COUNTS = words("two|three|four|five|six|seven|eight|nine|ten|eleven|twelve")
SEASONS = words("spring|summer|autumn|winter")
COLOURS = words("olive green|dark brown|sandy yellow|bluish grey|rust red|creamy white|deep black")
FATHERS = words(
    "a clockmaker|a village teacher|a timber merchant|a country priest|a ferryman|a tax collector"
    "|a baker|a ship's doctor|a postmaster|a gardener"
)
GENUS_HEADS = words(
    "Acr|Brachy|Chlor|Chrys|Crypt|Dendr|Erythr|Gymn|Heter|Hydr|Lept|Leuc|Macr|Melan|Micr|Orth"
    "|Pachy|Platy|Pseud|Rhod|Sten|Xanth"
)
SUBJECTS = words(
    "a family feud|a lost inheritance|an unhappy marriage|the last days of a war|a long winter"
    "|the rise and fall of a merchant|two brothers in love with the same woman|a forgotten crime"
    "|a childhood by the sea|the building of a railway|a journey across the mountains"
    "|a country doctor|an exile who comes home|a village that refuses to die"
)
TITLE_ADJECTIVES = words(
    "Silent|Last|Golden|Broken|Distant|Hidden|Burning|Winter|Crooked|Empty|Blue|Quiet|Long|Seventh"
)
TITLE_NOUNS = words(
    "Harvest|Garden|Bridge|River|Daughter|Lantern|Orchard|Kingdom|Window|Letter|Road|Clockmaker"
    "|Mirror|Island|Guest|Shepherd|Tower|Crossing"
)
