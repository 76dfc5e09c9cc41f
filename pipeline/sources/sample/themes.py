"""What the sample's articles are about more closely: a harbour or a mine, a bird or an orchid.

A *theme* is a set of words that go together, field by field; all themes of a kind have the same
fields. So the sentences of an article belong together even where they share no word: a mine has
shafts, and its feast is St. Barbara's Day.
"""

from pipeline.sources.sample.words import words

Theme = dict[str, tuple[str, ...]]


def theme(rows: str) -> Theme:
    """Fields of one theme: a line "field: red|blue" for each."""
    pairs = (line.split(":", 1) for line in rows.strip().splitlines())
    return {field.strip(): words(options) for field, options in pairs}


PLACE_THEMES = (
    theme("""
        trade: herring fishing|the coastal trade|boat building|cod fishing
        goods: smoked herring|salted cod|oysters|tarred rope
        workers: fishermen|boat builders|sailors|pilots
        sight: the old lighthouse|the harbour wall|the rope walk|the fish market
        feast: Blessing of the Boats|Herring Fair|Regatta|Night of the Lanterns
        blow: the shoals moved away|the harbour silted up|a storm sank half of the fleet
        land: salt marshes and low dunes|steep cliffs|sandy bays and skerries"""),
    theme("""
        trade: silver mining|copper mining|coal mining|the working of slate
        goods: silver ore|copper|coal|roofing slate
        workers: miners|smelters|quarrymen|colliers
        sight: the miners' chapel|the great wheel house|the old smelting works|the upper shaft
        feast: Feast of the Lamps|Miners' Parade|St. Barbara's Day|Day of the Last Cart
        blow: the richest seam flooded|the ore gave out|the deepest shaft collapsed
        land: old workings and wooded hills|steep wooded ridges|a high, stony plateau"""),
    theme("""
        trade: wine growing|fruit farming|the growing of hops|sheep farming
        goods: white wine|dried plums|hops|sheep's cheese
        workers: vintners|growers|shepherds|coopers
        sight: the vaulted cellars|the tithe barn|the terraced vineyards|the old press house
        feast: Grape Harvest|Blossom Sunday|Cheese Market|Feast of the New Wine
        blow: blight killed the vines|three harvests failed|frost destroyed the orchards
        land: orchards and gentle hills|sunny terraces|a broad and fertile valley"""),
    theme("""
        trade: linen weaving|wool spinning|lace making|cotton printing
        goods: linen|fine woollen cloth|lace|printed cotton
        workers: weavers|spinners|lace makers|dyers
        sight: the brick mill|the cloth hall|the dyers' bridge|the weavers' cottages
        feast: Ribbon Fair|Weavers' Ball|Cloth Market|Spindle Sunday
        blow: cheap imports ruined the looms|the largest mill burned down|wages were cut by half
        land: meadows and mill ponds|narrow valleys full of streams|flat fields of flax"""),
    theme("""
        trade: book printing|teaching|the making of instruments|bell founding
        goods: printed books|maps|violins|church bells
        workers: printers|scholars|instrument makers|bell founders
        sight: the cathedral|the university library|the botanical garden|the bell tower
        feast: Scholars' Week|Organ Festival|Feast of the Bells|Book Fair
        blow: the university moved away|the bishop left|the library was plundered
        land: quiet river meadows|low wooded hills|a plain with wide views"""),
    theme("""
        trade: the spa trade|bottling of mineral water|winter sports|glass making
        goods: mineral water|bath salts|cut glass|skis
        workers: innkeepers|bath attendants|glass blowers|mountain guides
        sight: the pump room|the casino|the royal baths|the cable car
        feast: Opening of the Springs|Snow Festival|Glass Days|Ball of the Waters
        blow: the hot spring ran dry|an avalanche buried the hotels|rich guests stayed away
        land: alpine meadows|dense fir forests|a sheltered basin with hot springs"""),
)

PERSON_THEMES = (
    theme("""
        job: painter|sculptor|engraver|portraitist
        study: drawing|painting|anatomy and drawing
        house: Academy of Fine Arts|School of Design|Royal Drawing School
        output: landscapes|altar pieces|portraits of children|studies of light
        fame: use of colour|quiet interiors|treatment of snow|bold brushwork
        circle: painters|artists|draughtsmen
        thing: canvas|fresco|cycle of engravings"""),
    theme("""
        job: composer|pianist|violinist|conductor
        study: harmony|the organ|piano and composition
        house: Conservatory|Music School|Academy of Music
        output: string quartets|songs|choral works|chamber music
        fame: long melodies|use of folk tunes|daring harmonies|rhythmic invention
        circle: musicians|singers|pianists
        thing: symphony|concerto|mass|song cycle"""),
    theme("""
        job: chemist|physicist|astronomer|mathematician
        study: chemistry|natural philosophy|mathematics and optics
        house: Institute of Physics|Polytechnic|Royal Observatory
        output: papers on heat|tables of the moon|studies of gases|work on crystals
        fame: exact measurements|theory of solutions|catalogue of stars|proof of a famous theorem
        circle: scientists|students|fellow researchers
        thing: treatise|paper|textbook"""),
    theme("""
        job: politician|lawyer|diplomat|reformer
        study: law|history and law|economics
        house: Faculty of Law|Civil Academy|Law School
        output: speeches on taxation|bills on schooling|legal opinions|pamphlets
        fame: defence of the poor|dry wit|patience in debate|reform of the prisons
        circle: deputies|lawyers|reformers
        thing: pamphlet|essay|speech"""),
    theme("""
        job: novelist|poet|playwright|translator
        study: philology|classical languages|literature
        house: Faculty of Letters|Academy of Letters|Drama School
        output: short stories|sonnets|comedies|ballads
        fame: irony|portraits of country life|simple verse|sharp dialogue
        circle: writers|critics|publishers
        thing: novel|collection|play"""),
    theme("""
        job: engineer|architect|inventor|surveyor
        study: engineering|building|geometry and mechanics
        house: School of Bridges|Technical College|Mining Academy
        output: designs for bridges|plans for canals|railway stations|pumps and turbines
        fame: slender arches|use of iron|practical sense|daring tunnels
        circle: engineers|builders|draughtsmen
        thing: design|pattern book|report"""),
    theme("""
        job: physician|surgeon|nurse|botanist
        study: medicine|anatomy|pharmacy and botany
        house: Medical School|University Hospital|Botanical Institute
        output: reports on fevers|herbals|lectures on hygiene|studies of the heart
        fame: gentle methods|war on cholera|knowledge of herbs|careful case notes
        circle: doctors|nurses|medical students
        thing: handbook|herbal|lecture"""),
)

SPECIES_THEMES = (
    theme("""
        animal: bird|songbird
        noun: warbler|thrush|finch|lark|wren|bunting
        mark: crested|spotted|grey-backed|red-throated|white-winged|black-capped
        ending: ornis|avis|cichla|spiza
        skin: plumage
        meal: insects and spiders|seeds and berries|snails and worms|caterpillars
        home: reed beds|upland heaths|old beech woods|river islands
        birth: lays its eggs in a cup of grass and moss|nests in hollow trees
        act: sings from the tops of bushes|migrates by night|forages in small flocks
        danger: the draining of marshes|nest robbers|the felling of old trees"""),
    theme("""
        animal: fish|freshwater fish
        noun: trout|perch|loach|chub|goby|char
        mark: silver|banded|slender|blunt-nosed|golden-finned|dusky
        ending: ichthys|gobio|salmo|perca
        skin: scales
        meal: water fleas|larvae and small crustaceans|algae|smaller fish
        home: cold mountain lakes|gravelly streams|deep pools|brackish lagoons
        birth: spawns over clean gravel|guards its eggs under flat stones
        act: hunts at dusk|shelters among roots by day|moves upstream in shoals
        danger: weirs and dams|polluted water|overfishing"""),
    theme("""
        animal: beetle|insect
        noun: longhorn|ground beetle|leaf beetle|weevil|chafer|stag beetle
        mark: bronze|violet|four-spotted|hairy|striped|emerald
        ending: carabus|cerus|philus|meles
        skin: wing cases
        meal: rotting wood|pollen|roots|aphids and mites
        home: dead oaks|sunny forest edges|dry grassland|river banks
        birth: lays its eggs in cracks of the bark|digs short tunnels for its larvae
        act: flies on warm evenings|feigns death when touched|gathers on flowers
        danger: the removal of dead wood|insecticides|street lamps"""),
    theme("""
        animal: plant|perennial herb
        noun: orchid|gentian|bellflower|saxifrage|primrose|sedge
        mark: dwarf|marsh|pale|woolly|late-flowering|alpine
        ending: anthus|orchis|phyllum|flora
        skin: petals
        meal: melting snow and thin soil|leaf mould|a fungus in its roots|minerals in the lime
        home: wet meadows|limestone ledges|open pine woods|damp hollows
        birth: sets plenty of seed|spreads by short runners
        act: flowers for only a few days|is visited by bumblebees|closes its flowers in rain
        danger: early mowing|collectors|heavy grazing"""),
    theme("""
        animal: amphibian|frog
        noun: tree frog|toad|newt|salamander|marsh frog|spadefoot
        mark: warty|marbled|yellow-bellied|fire-eyed|long-legged|slate-coloured
        ending: bufo|rana|triton|hyla
        skin: skin
        meal: slugs and beetles|mosquito larvae|earthworms|moths
        home: flooded quarries|shady brooks|village ponds|peat bogs
        birth: leaves its spawn in shallow ponds|carries its eggs on its back
        act: calls on rainy nights|winters under logs|hides in the mud by day
        danger: a fungal disease|road traffic|the filling of ponds"""),
    theme("""
        animal: mammal|rodent
        noun: vole|bat|shrew|dormouse|marten|hare
        mark: lesser|long-eared|pygmy|snow|bicoloured|broad-footed
        ending: mys|sorex|lepus|nyctis
        skin: fur
        meal: nuts and buds|moths and midges|roots and grass|beetles
        home: rocky slopes|caves and mine shafts|hazel thickets|high pastures
        birth: raises its young in a nest of leaves|bears its young in a burrow
        act: sleeps through the winter|is active mostly at night|stores food underground
        danger: stray cats|disturbance of its caves|the loss of hedges"""),
)

WORK_THEMES = (
    theme("""
        form: novel|historical novel|novella
        made: finished|completed
        shown: published|printed
        public: readers|book clubs
        part: chapters|letters|long chapters
        house: Press|Verlag|Books|& Sons
        quality: its dialogue|the opening chapter|its unreliable narrator|the letters
        flaw: the slow middle part|its many characters|a hurried last chapter
        sold: copies
        second: translated into German|adapted for radio|reprinted as a paperback
        prize: Book Prize|Writers' Medal|Prize for Fiction"""),
    theme("""
        form: film|silent film|drama film
        made: directed|shot
        shown: screened|released in cinemas
        public: viewers|cinema audiences
        part: reels|scenes|long takes
        house: Film Company|Pictures|Studios
        quality: its camera work|the night scenes|the leading actress|the editing
        flaw: the wooden acting|a confused plot|the painted sets
        sold: tickets
        second: restored from a single print|remade in colour|shown on television
        prize: Golden Reel|Critics' Award|Prize for Best Film"""),
    theme("""
        form: opera|comic opera|ballet
        made: composed|scored
        shown: staged|performed
        public: opera-goers|concert-goers
        part: acts|scenes|tableaux
        house: Opera House|Theatre|Court Theatre
        quality: the love duet|the overture|its choruses|the storm music
        flaw: the weak libretto|its length|the heavy brass
        sold: tickets
        second: revived with new costumes|recorded in full|given in concert
        prize: Theatre Prize|Musicians' Medal|Court Prize"""),
    theme("""
        form: album|folk album|live album
        made: recorded|produced
        shown: released|issued on vinyl
        public: listeners|fans
        part: tracks|songs|ballads
        house: Records|Sound|Discs
        quality: its guitar solos|the closing track|the warm vocals|the drumming
        flaw: the thin sound|too many slow songs|the echo on the voice
        sold: records
        second: remastered|reissued with two extra tracks|played in full on tour
        prize: Record of the Year|Folk Award|Listeners' Prize"""),
    theme("""
        form: play|comedy|tragedy
        made: finished|completed
        shown: acted|put on
        public: theatre-goers|spectators
        part: acts|scenes|monologues
        house: Playhouse|Drama Company|Little Theatre
        quality: the trial scene|its sharp wit|the stage effects|the long silences
        flaw: the stiff verse|an improbable ending|too many entrances
        sold: seats
        second: filmed in one night|turned into a musical|revived by students
        prize: Drama Prize|Players' Medal|Golden Mask"""),
)

EVENT_THEMES = (
    theme("""
        event: battle|siege|naval battle
        people: soldiers|cavalry|volunteers
        omen: raids on both sides of the border|the claims of two dynasties
        cause: a dispute over tolls|a broken truce|the claim of a rival heir
        harm: killed or wounded|taken prisoner|left dead on the field
        deed: crossed the marsh by night|broke through the left wing|held the bridge until dusk
        trouble: fog|a shortage of powder|quarrels among the officers
        end: a treaty|an armistice|the withdrawal of the garrison
        trace: musket balls|rusted swords|earthworks
        memory: a granite obelisk|a yearly re-enactment|a military museum"""),
    theme("""
        event: flood|storm surge|dam failure
        people: families|farmers|rescuers
        omen: the state of the dykes|repairs to the old weir
        cause: weeks of heavy rain|melting snow|an ice jam|a neglected dyke
        harm: made homeless|drowned|cut off for days
        deed: rowed from roof to roof|piled up sandbags|carried children to the church tower
        trouble: darkness|the lack of boats|falling trees
        end: the building of higher dykes|a new river law|the moving of whole streets
        trace: high-water marks|silted cellars|a broken weir
        memory: a line carved in the town wall|a procession of boats|a weather station"""),
    theme("""
        event: strike|lockout|general strike
        people: workers|dockers|railwaymen|mill hands
        omen: low wages|the long hours in the mills
        cause: a cut in wages|the sacking of an organiser|a longer working day
        harm: dismissed|arrested|left without pay
        deed: marched behind a brass band|blocked the gates|ran soup kitchens
        trouble: hunger|strike-breakers|an empty strike fund
        end: a shorter working week|a wage agreement|the founding of a union
        trace: leaflets|court files|a painted banner
        memory: a song that is still sung|a mural|a square named after the leaders"""),
    theme("""
        event: exhibition|trade fair|congress
        people: exhibitors|visitors|delegates
        omen: a show of local goods|a great hall of glass
        cause: the opening of the railway|a royal jubilee|a wish to promote local industry
        harm: turned away at the gates|awarded medals|lodged in private houses
        deed: lit the halls with electric lamps|showed the first telephones|built a glass pavilion
        trouble: a leaking roof|late deliveries|high ticket prices
        end: a museum of industry|a permanent fairground|a debt that took years to pay
        trace: posters|catalogues|one iron pavilion
        memory: a fountain in the park|a series of stamps|an annual fair"""),
    theme("""
        event: expedition|crossing|survey
        people: explorers|porters|sledge drivers
        omen: the blank places on the map|a shorter way to the coast
        cause: reports of an unknown pass|a wager|the search for a missing ship
        harm: frostbitten|lost in the snow|sent back sick
        deed: reached the summit at dawn|mapped three glaciers|wintered in a hut of stones
        trouble: scurvy|broken sledges|thin ice
        end: the first reliable map|a book of travels|a new trade route
        trace: tins|a cairn|pages of a diary
        memory: a peak named after the leader|a collection of sledges|a bronze compass"""),
    theme("""
        event: fire|great fire|explosion
        people: firemen|neighbours|night watchmen
        omen: thatched roofs|the lack of pumps
        cause: a baker's oven|a stroke of lightning|an overturned lamp|a gas leak
        harm: burned out|badly hurt|lodged in tents
        deed: formed bucket chains|pulled down a row of houses|saved the archives
        trouble: a strong wind|frozen wells|narrow lanes
        end: a ban on thatched roofs|a professional fire brigade|wider streets
        trace: charred beams|melted glass|a layer of ash
        memory: a bell that rings at nine|a chapel|a plaque on the corner house"""),
)
