"""The sentences of the sample's articles, as a person writes them down.

    == History >          a section, with its heading (the lead has none); >: told in this order
    * The {type} ...      a slot: one statement of the section
    - In {founded} ...    the same statement told in another way
      [a|b] ...           a continued line; either of two wordings

The first slot opens its section. Of the others most are told, so each must stand alone; their order
is drawn where no ">" fixes it. {any} is a small number, {trade_} is {trade} with a capital letter.
Names in braces are the columns of `sample_facts`. Definite descriptions and pronouns often stand
for the name, as in real prose: word overlap alone must not tell which sentence follows which.
"""

# ruff: noqa: RUF001 (the en dash between two years is meant)

PLACE = """
==
* {town} is {a_type} in {region}, {country}, [lying|situated] on the {river} some {km} km {side} of
  {near}.
- {town} ([population|pop.] {people}) is {a_type} in the {side} of {region}, {country}.
- Lying {km} km {side} of {near}, {town} is one of the [older|better known|smaller] places in the
  {region} region of {country}.
* [The {type}|It] is known for {trade} and for {sight}.
- For most visitors [its name|the {type}] stands above all for {goods}.
- {trade_} made [it|the {type}] rich; today people come to see {sight}.
* At the {census} census it had {people} inhabitants, {change} {earlier} ten years before.
- [About|Some] {people} people live [here|there] ({census}), {change} {earlier} a decade earlier.
* [Since|Ever since] {railway} a railway has linked it with {near}; the {nation} capital is {any}
  hours away.
- [The {type}|It] [was founded|was first mentioned] in {founded} and has belonged to {country} since
  the {season} of {rebuilt}.
* The {type} is surrounded by {land}.
- [Walkers|Guests] come for {land}, [as well as|and of course] for {goods}.

== History >
* [The settlement|The place|It] was founded in {founded} by {p}, [who|a noble who] had been given
  the land by the Duke of {region}.
- [A charter|A deed] of {founded} is the first to mention [the place|a settlement here], then owned
  by {p}.
- [Excavations near {sight}|Finds from the market square] go back to c. {founded}, when {p} settled
  the first {workers} on this bank of the {river}.
* {p_last} [also had|ordered] a church [built|raised], [dedicated to|named after] St. {saint}.
- The church of St. {saint} goes back to the same {p_man}, who is buried in the choir.
* Market rights followed in {charter}, and with them the [first|oldest] guild of {workers}.
- In {charter} the {workers} [obtained|were granted] a charter of their own.
* In {disaster} [a fire|the plague|a hostile army] [laid waste|emptied] most of the {type}; it was
  not until {rebuilt} that [the walls stood again|life returned to normal].
- After the [great fire|plague|long siege] of {disaster} only {any} houses were still inhabited, and
  [rebuilding|recovery] lasted until {rebuilt}.
* [Later|In the years that followed] the {workers} prospered, and {goods} [paid for|made possible] a
  new school.
- During the wars between {country} and {foreign} the {type} [changed hands|was occupied] {any}
  times.
* The railway from {near} arrived in {railway} and [ended|put an end to] centuries of isolation.
- A [branch line|narrow-gauge railway] to {near}, opened in {railway}, carried {goods} to the
  capital.
* Hard times came in the {season} of {modern}, when {blow}.
- When {blow} in {modern}, [many|hundreds of] families [left for|moved to] {near}.

== Geography
* The {type} lies at {metres} m above sea level, where the {river} [turns {side}|leaves the hills].
- [It covers|Its territory covers] {area} km², from {metres} m up to the ridge that parts it from
  {near}.
- The {river} divides it into an upper and a lower part, joined by {any} bridges.
* To the {other_side} one [sees|looks out on] {land}.
- Beyond the last houses the road runs {other_side} through {land}.
* Summers are [mild|short|dry], with an average of {degrees} °C in July; [fog|snow|rain] is common
  from {month} on.
- The warmest month reaches {degrees} °C, while the {season} is usually [wet|windy|quiet].
* The [soil|ground] is [poor|stony|heavy], and [birches|old oaks|pines] grow on the slopes above the
  {river}.
- A [nature reserve|forest] {side} of the {type} is home to [otters|storks|wild cats] and many rare
  plants.
* The {river} [floods|bursts its banks] every {any} years or so, [mostly|usually] in {month}.
- Floods of the {river} are marked on a stone beside {sight}.
* The nearest [larger place|railway junction] is {near}, {km} km away.
- A road of {km} km [leads|runs] to {near}, crossing the {river} twice.

== Economy
* For centuries [people here|the inhabitants] lived on {trade}.
- [The economy|Local life] was long [ruled|shaped] by {trade}, and {workers} held most seats in the
  council.
- {trade_} remained the main source of income until {modern}.
* [Merchants|Pedlars] sold {goods} as far away as {near} and the court of {country}.
- In {railway} alone, {earlier} crates of {goods} left [by rail|on the new line].
* After {modern} [small workshops|a sawmill and a dairy|offices] took over from the {workers}.
- The last {workers} gave up when {blow}, and tourism [filled|took] their place.
* The largest employer today is [a dairy|the hospital|a paper mill|a furniture factory] with {any}
  hundred workers.
- About {any} in a hundred of its people [travel|commute] to {near} for work, [mostly|many of them]
  by train.
* [Every|Each] {season}, the {feast} draws guests from all over {region}.
- The [best-known|liveliest] festival is the {feast}, held in the {season} in front of {sight}.
* There are {schools} schools and [a small hospital|a public library|a swimming pool].
- The council, which has {schools} members from {any} parties, meets on the first Monday of {month}.

== Culture
* The main sight is {sight}, [restored|rebuilt] in {modern} [with the help of|by] {q}.
- Of the old buildings only {sight} and St. {saint}'s have [survived|been spared].
- A walk usually starts at {sight}, [not far|a few steps] from the {river}.
* The local museum shows [tools|the daily life] of the {workers} and a model of the place in
  {charter}.
- {q_initial} [left|gave] a collection of [old maps|{nation} coins] to the museum in {modern}.
* [Local|Older] people still speak a dialect that is [hard|not easy] to follow in {near}.
- A choir, a [football|rowing|chess] club and {any} other societies [meet|are at home] in the old
  school.
* The {nation} [writer|painter|composer] {q} spent {any} summers [here|there] and praised {goods} in
  {q_his} letters.
- {q}, whose [mother|grandfather] came from {near}, was born here; a street [bears|keeps] {q_his}
  name.
* A statue of the founder, {p}, stands [on the market square|beside the church].
- The year {founded} and the arms of the {p_last} family can still be seen above the gate.
* On the {feast} the {workers} [carry|used to carry] a wooden St. {saint} through the streets.
- The {feast} [recalls|remembers] the {season} of {disaster} and ends on the bank of the {river}.
"""

PERSON = """
==
* {p} ({day} {month} {born} – {died}) was {a_nation} {job} [from|of] {region}.
- {p} ([born|b.] {born} in {town}, [died|d.] {died} in {near}) was {a_nation} {job}.
- Dr. {p}, {a_job} [and teacher|by profession], lived from {born} to {died}, mostly in {near}.
* [Today|Above all], {p_he} is remembered for {p_his} {fame}.
- {p_his_} {output} and {p_his} {fame} [won|earned] {p_him} a place in {nation} schoolbooks.
* {p_he_} [taught|worked] for many years at the {house} in {near}.
- A [professor|fellow] of the {house}, {p_he} had [a strong|a lasting] influence on younger
  {circle}.
* {p_he_} [left|was the author of] {any} [major|larger] works, "{title}" ({debut}) being the best
  known.
- "{title}", from {debut}, is still the work by which most people know {p_last}.
* Among {p_his} friends was {q}, [who|a neighbour who] kept all of {p_his} letters.
- {p_he_} [corresponded|exchanged letters] with {q} for {any} years.

== Early life >
* {p_he_} was born on {day} {month} {born} in {town}, [the {p_son} of|where {p_his} father was]
  {father}.
- {p_last} [grew up|spent {p_his} childhood] in {town}, on the {river}, as the {p_son} of {father}.
- The {any} {p_last} children, of whom {p_first} was the [youngest|eldest], grew up in {town} with
  {father} for a father.
* At the age of {child} {p_he} [was already drawn to|first heard of] {study}.
- An aunt [gave|lent] {p_him} books on {study}, [which {p_he} read in secret|and a quiet room].
* From {school} {p_he} studied {study} at the {house} in {near}.
- In {school} {p_he} [left for|moved to] {near} to study {study}, [against the will of|supported by]
  the family.
* [The first teacher|The one teacher] {p_he} admired was {q}, {a_job} of the old school.
- {q_last} [took|accepted] {p_him} as a pupil and [taught|showed] {p_him} patience.
* A [long illness|fall from a horse] [kept|held] {p_him} in bed for a whole {season}; {p_he} used it
  to read.
- {p_his_} first attempts, [made|begun] at the {house}, were [lost in a fire|torn up soon after].
* Money was short, and {p_he} [copied papers|gave lessons|worked] at night [to pay the rent|to
  live].
- A grant from the town of {near} [allowed|enabled] {p_him} to stay for {any} years.

== Career >
* {p_he_} made {p_his} debut in {debut} with {a_thing} [called|entitled] "{title}".
- "{title}" ({debut}), {p_his} first {thing}, [was hardly noticed|made {p_him} known overnight].
- The {thing} of {debut}, "{title}", was the work of a beginner of only {debut_age}.
* In {moved} {p_he} [accepted|was offered] a post at the {house}, where {q} was already teaching.
- From {moved} on {p_he} lived in {near} and moved [in the circle of|among] {circle}.
* [Critics|Some {circle}] praised the {fame}; others [found|called] {p_him} old-fashioned.
- {p_his_} {fame} divided {circle}: {q_initial}, for one, [never warmed to it|defended it in print].
* {p_he_} [received|was awarded] the Medal of {region} in {prized} for {p_his} {output}.
- For "{title2}", finished in {prized}, {p_he} [was honoured|was praised] by the {house}.
* In the {season} of {late} {p_he} travelled to {foreign}, [returning|and came back] with a new
  {thing}.
- A journey to {foreign} in {late} [changed|renewed] {p_his} view of {study}.
* As a teacher {p_he} was [strict but fair|loved and feared]; {any} later {circle} came from {p_his}
  classes.
- {p_he_} [began|opened] a small school for young {circle}, which {q} [carried on|closed] after
  {any} years.
* {p_his_} {output} were [collected|printed] in {any} volumes[, which sold well|].
- Most of the {output} date from these years, i.e. from {moved} to {late}.

== Personal life >
* In {married} {p_he} married a [cousin|friend] of {q}, with whom {p_he} had {any} children.
- {p_his_} marriage ({married}) to a teacher from {near} was [a happy one|not a happy one].
- {p_last} never married, but [raised|took in] the {any} children of a late sister.
* The family lived in a [small|narrow|yellow] house on the {river}.
- [Friends|Visitors] describe {p_him} as [shy|cheerful|stubborn] and always [short of money|late].
* During the war {p_he} [hid|sheltered] {any} refugees in the cellar, [which became known|as was
  found out] only in {renamed}.
- {p_last} [spoke|read] {any} languages, [but never learned to swim|and wrote a clear, small hand].
* [Walking|Chess|Gardening] was {p_his} only hobby.
- {p_he_} kept bees and [answered|wrote] {any} letters a day.
* {p_last} died on {day} {month2} {died}, at the age of {age}, and [was buried|lies buried] in
  {town}.
- {p_he_} died in {near} in {died}, aged {age}, after a short illness.

== Legacy
* The {house} in {near} [has borne|bears] {p_his} name since {renamed}.
- A street in {town} and a [school|hall] in {near} are named after {p_him}.
- [Forgotten|Little known] for decades, {p_he} was rediscovered in {renamed} by young {circle}.
* {p_his_} papers, among them the {thing} "{title}", are kept in {near}.
- "{title}" was [shown|printed] again in {renamed}, with a foreword by {q}.
* A [stamp|coin] with {p_his} portrait was issued in {renamed}.
- The [first|only full] biography, by a grandson of {q}, [appeared|came out] in {renamed}.
* [Later|Younger] {circle} [owe|owed] much to {p_his} {output}.
- Without {p_his} {fame}, wrote {q}, {nation} {study} would have [stood still|taken another road].
* A plaque [marks|in {town} marks] the house where {p_he} was born in {born}.
- Every {season} the people of {town} [celebrate|remember] their most famous {p_son}.
"""

SPECIES = """
==
* The {name} ({genus} {latin}) is a species of {animal} [found in|native to] {region}, {country}.
- {genus} {latin}, [commonly called|also known as] the {name}, is {a_animal} of the [hills|uplands]
  of {region} in {country}.
- The {name} is a small {animal} that lives in the {home} of {region} ({country}).
* [The {animal}|It] grows to [about|approx.] {length} cm and is easily told by {spot}.
- {length} cm long on average, it [can be|is best] recognised by its {colour} {skin}.
* [The {animal}|It] [lives on|depends on] {meal} and {act}.
- [The {animal}|It] {act}, and [needs|relies on] {meal} all year round.
* [Fewer than|About] {left} individuals [remain|are thought to remain], most of them near {town}.
- Once common [as far as|even in] {near}, it is now [found|seen] at only {any} places.
* [The {animal}|It] was first described by {p} in {found}.
- {p_initial} gave the species its [present|scientific] name in {found}.

== Description
* Adults are {colour}, with {spot} [along|on] each side; they measure {length} to {longest} cm.
- Seen from above, the {skin} may look {colour}; the underside is [paler|whitish].
- [With|At] a length of up to {longest} cm, this is the largest {animal} of its genus.
* {spot_} sets it [off|apart] from [all|its] relatives.
- [Young ones|Juveniles] lack {spot} and are [duller|much darker].
* In the {season} the {skin} can [turn|become] almost {colour2}.
- In old specimens the {colour} {skin} will fade [to grey|with the years].
* The [head|base] is [rather|unusually] broad, and [the tip|the hind part] is often [rust
  red|whitish].
- At a distance it may be [mistaken for|confused with] a dry leaf or a stone.
* Males and females [look alike|differ little], but [females are larger|males are brighter].
- Both sexes show {spot}, which [is broader|appears later] in the female.
* Specimens from the {river} valley [are smaller|reach only {length} cm].
- Size varies: in {near} few exceed {length} cm, [elsewhere|in the {side}] {longest} cm are common.

== Habitat
* [The {animal}|It] inhabits {home} between {low} and {high} m, [mostly|chiefly] along the {river}.
- Its home is in the {home} of {region}, from {low} m upwards.
- The species is [restricted to|only found in] {home} {side} of {town}.
* The range ends at {high} m, where {home} [must give|have to give] way to bare rock.
- [Records|Sightings] from above {high} m are [rare|doubtful].
* A second population lives {km} km to the {other_side}, near {near}.
- [The {animal}|It] is absent from the {other_side} of {country}, although there is no lack of
  {home}.
* In [some|cold] years it is also seen on [lower|drier] ground, often close to houses and gardens.
- [The {animal}|It] [tolerates|can stand] frost of up to {any} degrees, but no [long drought|lasting
  shade].
* [The {animal}|It] shares its habitat with {any} other species of the genus {genus}.
- With the loss of {home} it [vanishes|disappears] within {years} years.
* [Most|Many] finds are made in the {season}, when it {act}.
- The best time to see it is [late|early] {season}, when it {act}.

== Ecology
* The {animal} feeds on {meal}, [but|and] in a hard {season} it [makes do|can do] with less.
- Most of what it [needs|takes in] comes from {meal}.
- Studies near {town} have shown how closely it is tied to {meal}.
* [The {animal}|It] {birth} in [late|early] {season}.
- Every {season} it {birth}; of up to {young} offspring only a few survive.
* [The {animal}|It] {act}, [a habit|behaviour] first noted by {p} in {found}.
- On [still|warm] days it {act}.
* [The {animal}|It] is [most active|easiest to find] in the [first|last] {any} hours of daylight.
- In the {season} [up to|as many as] {any} of them are found side by side.
* [The {animal}|It] may reach an age of {years} years.
- Individuals of {years} years have been [recorded|marked and found again].
* Its [main|worst] enemies are [dry summers|cold springs] and [late frosts|parasites].
- [Disease|A cold year] may kill up to {young} per cent of the young.

== Conservation
* The species has been [protected|on the red list] since {listed}; about {left} individuals are
  left.
- In {listed} the number was put at {left}, [half|a third] of what it had been.
- [It is considered|Experts consider it] endangered [in spite of its range|almost everywhere].
* The main threat comes from {danger}.
- [The {animal}|It] has [become|grown] rare in the {side} because of {danger}.
* [Farmers|Owners] are paid by the government of {country} to leave {home} [as they are|untouched].
- A [law|plan] of {listed} forbids [building|all work] within {any} hundred metres of known sites.
* A reserve on the {river} [was founded|was set up] in {listed} by {q}.
- {q_initial}, who [counts|has counted] the {animal} every {month}, speaks of {left} survivors.
* [Pupils|Volunteers] from {town} have [restored|bought] {any} hectares of {home}.
- Attempts to [move|resettle] it near {near} [have failed|succeeded in {listed}].

== Taxonomy >
* {p} [collected|found] the first specimen near {town} in {found} and placed it in {genus}.
- The type specimen, [taken|collected] in {found} on the {river}, is kept in {near}.
- The name {latin} was [chosen|given] by {p} in {found}.
* The name {latin} [honours|goes back to] an older manuscript, [which|now lost, which] {p_last} had
  read as a student.
- Local people [call it|know it as] "the {colour} one" or "the little {noun}".
* In {revised} {q} [split|divided] {genus} into {any} genera, [leaving|but left] this species in
  place.
- A revision of {revised} ({q_last} et al.) [confirmed|doubted] its rank as a species.
* [Close|Its closest] relatives live in {foreign}.
- {short} is [closely related|sister] to a species from {foreign}.
"""

WORK = """
==
* {title} is {a_year} {form} by {p}, [set|mostly set] in {town} on the {river}.
- {title} is {a_nation} {form} [about|on the subject of] {subject}, {made} by {p} in {year}.
- With {title} ({year}) the {nation} artist {p} [won|reached] a wide public for the first time.
* [The {form}|It] tells of {subject} in {region}.
- Its theme is {subject}, [seen|told] through the eyes of {hero}.
* [The {form}|It] was first {shown} in {near} in {month} {year}.
- First {shown} in {year}, it was an [unexpected|immediate] success with {public}.
* [The {form}|It] has {number} {part} and [belongs to|stands at the end of] the artist's early
  period.
- {p_last} had begun it in {begun}; it was the [second|third|fifth] of {p_his} works to be {shown}.
* [The {form}|It] is [admired|remembered] for {quality}.
- {public_} [love|admire] {quality}; critics have [complained of|pointed out] {flaw}.

== Plot >
* The {form} [opens|begins] in {town}, where {hero} [returns|arrives] on {a_season} evening.
- {hero}, a young woman from {near}, [comes to|is sent to] {town} to look after a sick uncle.
- At the centre stands {hero}, [the only child|the daughter] of {father}.
* She [learns|discovers] that the {q_last} family [has|have] a secret, which has to do with
  {subject}.
- A letter reveals to {hero} [the truth|a story] of {subject}.
* {any_} years later, she [meets|writes to] old {q_last} on the bank of the {river}.
- Old {q_last} [offers|promises] her the house by the {river} [if she stays|, but she refuses].
* A [fire|storm|wedding] brings all of them together [for one night|under one roof].
- Meanwhile a young [soldier|teacher|priest] from {foreign} [falls in love with|asks questions
  about] her.
* In the last of [the|its] {number} {part} the {river} freezes and {hero} [leaves|crosses it] alone.
- The ending, in which {hero} [burns|hides] the letters, has been read in [two|many] ways.
* [Only|Nobody but] the stranger from {near} [believes|understands] her.
- There is little action: {hero} waits, [remembers|dreams] and at last decides to go.

== Production >
* {p} began work on it in {begun}, while living in {near}.
- The [idea|first idea] came to {p_last} in {begun}, during a stay in {town}.
- According to a letter to {q}, the {form} was planned in {begun} in only {any} days.
* {p_he_} {made} it in {any} months, [often|mostly] at night.
- [Some|Most] of the {number} {part} were [finished|changed] only days before it was {shown}.
* {q} advised {p_him} [to cut|to keep] the {season} scene.
- {p_his_} friend {q_initial} [paid|stood model|helped] and asked for nothing in return.
* The {near} {house} [took|accepted] it after {any} others had refused.
- [Many|At least {any}] houses refused it before the {near} {house} [said yes|took the risk].
* [Money|Time] ran out in the {season} of {year}, and {a_nation} [banker|publisher|baker] lent the
  rest.
- An early version, called "{title3}", [ended happily|had no hero] and was [burned|thrown away].
* {p_last} [drew on|used] memories of {p_his} own youth in {region}.
- [Real|Living] people from {town} stood behind {hero} and old {q_last}, [as {p_he} admitted|it is
  said].

== Reception
* When it was {shown} in {year}, critics [praised|singled out] {quality}.
- [The first|Early] reviews praised {quality} but [disliked|mentioned] {flaw}.
- {public_} [loved it|came in crowds]; the critics [shook their heads|remained cool] over {flaw}.
* {copies} {sold} were sold in the first year.
- By {prized}, some {copies} {sold} had [changed hands|been sold] in {country}.
* [The {form}|It] [won|received] the {nation} {prize} in {prized}.
- In {prized} the {prize} of {country} went to {p_last}, not least for {quality}.
* {q_last} called it "[the best|the saddest|the boldest] {form} of our time".
- A [hostile|famous] review by one Dr. {near_name} spoke of {flaw}.
* A [newspaper|critic] in {foreign} compared it to [a long winter|a cold bath|fresh bread].
- {p_last} read none of the reviews, [as|or so] {p_he} told {q} years later.
* [Censors|The church] objected to the scene on the {river}, which was cut until {again}.
- For [some|many] years it could not be {shown} in {foreign}.

== Legacy
* In {again} it was {second}.
- [Nearly forgotten|Out of fashion] for a time, it was {second} in {again}.
- [The {form}|It] [inspired|led to] {any} other works, among them "{title4}" ({again}).
* {hero} has become a [popular|common] name in {region} since.
- Visitors to {town} are [still shown|led to] the house of {hero}.
* [The original|The first] manuscript was sold to a museum in {near} for {any} thousand crowns.
- A festival in {town} [has been|is] devoted to it every {any} years since {again}.
* {p_last} [returned to|took up] the same subject in "{title2}".
- {p_his_} next {form}, "{title2}", [did not repeat|never had] its success.
* Scholars [see|read] it as a picture of {country} [before|after] the railway.
- Today [its|the] treatment of {subject} is [taught|discussed] in {nation} schools.
"""

EVENT = """
==
* The {year} {event} of {town}, in {region}, {country}, [began|started] on {day} {month}.
- The {event} of {town} took place on {day} {month} {year} [near|beside] the river {river}.
- In {year} {a_event} made {town}, [then a small place|a market town] in the {side} of {country},
  known far and wide.
* [The {event}|It] [lasted|went on] for {days} days and [involved|touched] some {crowd} {people}.
- Within {days} days about {crowd} {people} were [drawn in|on the spot].
* Its cause was {cause}.
- What [lay behind it|set it off] was {cause}.
* In all {victims} people were {harm}, [more than|as many as] ever before in {region}.
- [Some|About] {victims} people were {harm}, and {money} crowns were lost.
* [The {event}|It] [led to|ended with] {end}.
- Its [main|lasting] result was {end}.

== Background >
* [Since|Ever since] {before} there had been [talk of|a debate about] {omen}.
- The [roots|origins] of the {event} go back to {before} and to {omen}.
- As early as {before}, {p} had warned the council of {town} [in vain|in a long letter].
* {p}, [then mayor|a councillor|a judge], [promised|offered] to [act|mediate], but {trouble} got in
  the way.
- {p_last}, who [led|spoke for] the {people}, [hoped for|counted on] help from {near}.
* The town had [grown|changed] quickly: {any} new streets had been laid out since {before}.
- [Letters|Reports] sent to the capital of {country} [went|remained] unanswered.
* The {season} had been [unusually hard|long and dry].
- A [poor|bad] harvest and {trouble} made matters worse.
* [Both sides|The authorities] [underestimated|knew of] the danger, as {q} later [wrote|testified].
- {q}, [for one|however], [saw no reason|was not willing] to spend money on {omen}.

== Course >
* [The {event}|It] began {hour} on {day} {month}, [near|behind] the church of St. {saint}.
- {hour_}, the bells of St. {saint}'s [gave the alarm|began to ring].
- The first {people} [arrived|gathered] {hour} on the bank of the {river}.
* Led by {p_last}, the {people} {deed}.
- On the second day a group of {people} {deed}, [cheered|watched] by half of {town}.
* [At first|For a time] {trouble} [held them up|caused confusion].
- {trouble_} [cost|lost] them {any} hours.
* The school and {any} [inns|barns] [were|had to be] used to shelter the {people}.
- [Women|Children] from the villages brought bread, [blankets|soup] and [lamps|news].
* {p_last} [was wounded|fell ill], and {q} took [command|charge] for {any} days.
- Messages from {near}, {km} km away, came [too late|only after {any} days].
* [Towards the end|On the last day] the wind turned {side} and [the {people} could rest|hope
  returned].
- [Help|Relief] from {near} finally [came|arrived] by the {side} road.
* {q_last}'s {people} {deed}, which [decided|settled] the matter.
- [Eyewitnesses|Letters of the time] tell how they {deed}.

== Aftermath >
* In all, {victims} {people} were {harm}.
- The [official|parish] count speaks of {victims} {people} {harm}; the true number is
  [higher|unknown].
- {victims} people were {harm}, [among them|not counting] {p_last}'s own brother.
* The damage was put at {money} crowns.
- {money} crowns were [collected|spent] to help the {people} of {town}.
* {end_} [followed|came] in {after}.
- [The {event}|It] took until {after} to [agree on|see] {end}.
* [Newspapers|Travellers] from {foreign} wrote about it, [not always|seldom] truthfully.
- The [government|king] sent {q}, who stayed for {any} weeks and [wrote|handed in] a long report.
* {p} [was blamed|was thanked] and left for {foreign}.
- [A court|An inquiry] cleared {p} in {after}, [but|though] {p_he} never returned to {town}.
* {cause_} [remained|was] a subject of dispute for {any} years.
- The question of {cause} was [never quite settled|taken up again in {after}].

== Memory
* Today {memory} [recalls|reminds visitors of] the {event} of {year}.
- Since {century} {memory} [has kept|keeps] the memory alive.
- In {town}, {memory} [marks|recalls] the date, {day} {month}.
* In the museum of {near} [visitors|one] can [still|also] see {trace}.
- Digs on the {river} have brought {trace} to light.
* [The standard account|The best source] is still {q}'s [diary|report] (printed {book}).
- A book of {book} [puts|lays] the blame on {p_last}, [unfairly|wrongly] as most now think.
* A [film|novel|ballad] about the {event}, [made|written] in {book}, [invented|added] a love story.
- For the [hundredth anniversary|centenary] in {century}, {any} thousand people came to {town}.
* Historians [still differ|disagree] about {trouble} and the part played by {q_initial}.
- [Schoolchildren|Guests] [hear|learn] how the {people} {deed}.
"""
