#!/usr/bin/env python3
"""Write the German-English demonstration corpus: a small grammar, its lexicon and six text files.

Every sentence pair is made here, from the tables below; nothing is borrowed. The two sides of a pair
grow together (one clause, realised once in German word order and once in English), so that a German
sentence has exactly one translation. Some numbers, names, compounds and adjective-noun pairs are
held out of the training set and used in the other two: see `held_out`.

    python scripts/make_demo_corpus.py [--out data/demo]

Only `random.Random.random` is drawn from, whose sequence Python promises to keep, and no set is
iterated: the files are the same, byte for byte, on every supported Python.
"""

from __future__ import annotations

import argparse
import operator
import random
import re
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
Pair = tuple[str, str]
SIZES = {"test": 500, "valid": 500, "train": 20_000}
UNSEEN_SHARE = 0.35  # of the choices made for valid and test, where there is something held out


def listed(text: str) -> list[str]:
    """The words of a lexicon line."""
    return text.split()


# --- Lexicon: nouns, by what can be said of them ---------------------------------------------------
# gender (m, f, n; w = masculine with weak endings; p = plural only), singular, plural, English
# singular, English plural; "-" = no plural; "_" = a space.
NOUN_TABLE = {
    "person": """
        m Mann Männer man men; f Frau Frauen woman women; n Kind Kinder child children; w Junge Jungen boy boys
        n Mädchen Mädchen girl girls; m Gast Gäste guest guests; m Lehrer Lehrer teacher teachers
        f Lehrerin Lehrerinnen teacher teachers; m Arzt Ärzte doctor doctors; f Ärztin Ärztinnen doctor doctors
        w Nachbar Nachbarn neighbor neighbors; f Nachbarin Nachbarinnen neighbor neighbors
        w Kollege Kollegen colleague colleagues; f Kollegin Kolleginnen colleague colleagues
        w Student Studenten student students; f Studentin Studentinnen student students
        w Polizist Polizisten police_officer police_officers; m Kellner Kellner waiter waiters
        m Bäcker Bäcker baker bakers; w Bauer Bauern farmer farmers; f Künstlerin Künstlerinnen artist artists
        w Tourist Touristen tourist tourists; m Freund Freunde friend friends; f Chefin Chefinnen boss bosses""",
    "kin": """
        m Vater - father -; f Mutter - mother -; m Bruder Brüder brother brothers
        f Schwester Schwestern sister sisters; m Onkel - uncle -; f Tante Tanten aunt aunts; m Sohn Söhne son sons
        f Tochter Töchter daughter daughters; m Großvater - grandfather -; f Großmutter - grandmother -
        m Cousin Cousins cousin cousins; p Eltern Eltern parents parents
        p Großeltern Großeltern grandparents grandparents""",
    "animal": """
        m Hund Hunde dog dogs; f Katze Katzen cat cats; m Vogel Vögel bird birds; n Pferd Pferde horse horses
        f Kuh Kühe cow cows; f Ente Enten duck ducks""",
    "thing": """
        m Schlüssel Schlüssel key keys; m Koffer Koffer suitcase suitcases; m Ball Bälle ball balls
        m Regenschirm Regenschirme umbrella umbrellas; m Ring Ringe ring rings; f Tasche Taschen bag bags
        f Uhr Uhren clock clocks; f Gitarre Gitarren guitar guitars; f Flasche Flaschen bottle bottles
        f Tasse Tassen cup cups; n Messer Messer knife knives; f Taschenlampe Taschenlampen flashlight flashlights
        f Kamera Kameras camera cameras; n Fahrrad Fahrräder bicycle bicycles; n Bild Bilder picture pictures
        n Geschenk Geschenke gift gifts; n Paket Pakete package packages; n Handtuch Handtücher towel towels""",
    "clothes": """
        m Hut Hüte hat hats; m Mantel Mäntel coat coats; m Pullover Pullover sweater sweaters
        m Handschuh Handschuhe glove gloves; m Schuh Schuhe shoe shoes; f Jacke Jacken jacket jackets
        f Mütze Mützen cap caps; f Bluse Blusen blouse blouses; n Hemd Hemden shirt shirts
        n Kleid Kleider dress dresses; m Regenmantel Regenmäntel raincoat raincoats""",
    "reading": """
        m Brief Briefe letter letters; f Zeitung Zeitungen newspaper newspapers; n Buch Bücher book books
        n Wörterbuch Wörterbücher dictionary dictionaries; n Heft Hefte notebook notebooks""",
    "device": """
        m Computer Computer computer computers; m Fernseher Fernseher television televisions
        m Staubsauger Staubsauger vacuum_cleaner vacuum_cleaners; f Lampe Lampen lamp lamps
        n Radio Radios radio radios; f Waschmaschine Waschmaschinen washing_machine washing_machines
        m Kühlschrank Kühlschränke refrigerator refrigerators""",
    "furniture": """
        m Tisch Tische table tables; m Stuhl Stühle chair chairs; m Schrank Schränke cabinet cabinets
        m Schreibtisch Schreibtische desk desks; m Spiegel Spiegel mirror mirrors; m Teppich Teppiche carpet carpets
        n Bett Betten bed beds; n Sofa Sofas sofa sofas; n Regal Regale shelf shelves""",
    "opening": """
        f Tür Türen door doors; n Fenster Fenster window windows; f Haustür Haustüren front_door front_doors
        f Schublade Schubladen drawer drawers; m Briefkasten Briefkästen mailbox mailboxes""",
    "fruit": """
        m Apfel Äpfel apple apples; f Birne Birnen pear pears; f Banane Bananen banana bananas
        f Orange Orangen orange oranges; f Tomate Tomaten tomato tomatoes; n Ei Eier egg eggs
        f Kartoffel Kartoffeln potato potatoes; n Brötchen Brötchen roll rolls
        f Erdbeere Erdbeeren strawberry strawberries""",
    "cake": """
        m Kuchen Kuchen cake cakes; m Apfelkuchen Apfelkuchen apple_pie apple_pies
        m Käsekuchen Käsekuchen cheesecake cheesecakes""",
    "dish": "f Suppe Suppen soup soups; m Eintopf Eintöpfe stew stews",
    "salad": "m Salat Salate salad salads; m Pfannkuchen Pfannkuchen pancake pancakes",
    "food": """
        n Brot - bread -; m Käse - cheese -; m Reis - rice -; m Honig - honey -; n Fleisch - meat -
        n Obst - fruit -; f Butter - butter -; f Marmelade - jam -; n Eis - ice_cream -""",
    "hot": "m Kaffee - coffee -; m Tee - tea -; f Milch - milk -; n Wasser - water -",
    "drink": "m Saft - juice -; n Bier - beer -; m Wein - wine -",
    "room": """
        f Küche Küchen kitchen kitchens; n Zimmer Zimmer room rooms; m Keller Keller basement basements
        n Wohnzimmer Wohnzimmer living_room living_rooms; n Büro Büros office offices
        n Schlafzimmer Schlafzimmer bedroom bedrooms; n Badezimmer Badezimmer bathroom bathrooms
        f Garage Garagen garage garages; f Wohnung Wohnungen apartment apartments""",
    "building": """
        n Haus Häuser house houses; f Schule Schulen school schools; f Kirche Kirchen church churches
        n Museum Museen museum museums; n Theater Theater theater theaters; n Hotel Hotels hotel hotels
        f Bibliothek Bibliotheken library libraries; n Kino Kinos movie_theater movie_theaters
        n Restaurant Restaurants restaurant restaurants; f Fabrik Fabriken factory factories
        n Krankenhaus Krankenhäuser hospital hospitals; f Bäckerei Bäckereien bakery bakeries
        f Apotheke Apotheken pharmacy pharmacies; m Supermarkt Supermärkte supermarket supermarkets
        n Rathaus Rathäuser city_hall city_halls; m Bahnhof Bahnhöfe train_station train_stations
        m Flughafen Flughäfen airport airports""",
    "sight": "m Turm Türme tower towers; f Brücke Brücken bridge bridges; f Burg Burgen castle castles",
    "place": """
        m Park Parks park parks; m Garten Gärten garden gardens; m Wald Wälder forest forests
        f Stadt Städte city cities; n Dorf Dörfer village villages; f Insel Inseln island islands
        m Strand Strände beach beaches; m See Seen lake lakes; m Fluss Flüsse river rivers
        m Markt Märkte market markets; m Spielplatz Spielplätze playground playgrounds""",
    "vehicle": """
        n Auto Autos car cars; m Zug Züge train trains; m Bus Busse bus buses; n Taxi Taxis taxi taxis
        n Schiff Schiffe ship ships; n Flugzeug Flugzeuge airplane airplanes
        f Straßenbahn Straßenbahnen streetcar streetcars""",
    "talk": """
        f Frage Fragen question questions; n Wort Wörter word words; f Antwort Antworten answer answers
        f Sprache Sprachen language languages; n Problem Probleme problem problems; m Plan Pläne plan plans""",
    "tale": "n Lied Lieder song songs; f Geschichte Geschichten story stories",
    "event": """
        m Film Filme movie movies; n Konzert Konzerte concert concerts; n Spiel Spiele game games
        f Reise Reisen trip trips; f Prüfung Prüfungen exam exams; m Kurs Kurse course courses
        f Besprechung Besprechungen meeting meetings; n Fest Feste festival festivals""",
}
# First part of a compound as it stands in the word, its English, and the heads it goes with; "*" keeps
# the compound out of the training set, which has its two parts in others.
COMPOUND_TABLE = """
    Küchen kitchen: Tür Fenster *Lampe Tisch Stuhl Schrank Regal Uhr Messer
    Keller basement: *Tür Fenster Lampe Schlüssel Regal
    Garten garden: Tür Lampe *Tisch Stuhl
    Büro office: Tür *Fenster Lampe *Schlüssel Tisch Stuhl Schrank Regal
    Schul school: Tür Fenster *Uhr *Tasche Buch Heft Bibliothek Garten Bus
    Hotel hotel: Tür Zimmer Garten Restaurant Bett *Schlüssel
    Garagen garage: Tür Fenster Lampe Schlüssel
    Auto car: *Tür Fenster Schlüssel Radio
    Kirchen church: Tür *Fenster Uhr *Schlüssel
    Holz wooden: *Tür Tisch Stuhl *Regal Schrank Bett Haus Brücke Ring Turm
    Glas glass: Tür Tisch Regal Schrank *Lampe Flasche
    Leder leather: Jacke Tasche *Mantel Koffer Sofa Handschuh Schuh *Mütze
    Woll woolen: Mütze Pullover Jacke Mantel Handschuh Teppich Kleid
    Winter winter: Mantel *Jacke Mütze Schuh Handschuh Reise Lied
    Sommer summer: Kleid Jacke Hut *Schuh Hemd Haus Fest Reise Lied
    Kinder children's: Buch Zimmer Bett Fahrrad *Stuhl Schuh *Lied Film Fest
    Stadt city: Park Bibliothek Museum Theater *Fest Bus
    Dorf village: Kirche Schule Bäckerei *Fest
    Bahnhofs station: Uhr Restaurant Hotel Bäckerei Apotheke
    Hafen harbor: Restaurant Hotel *Museum Fest
    Apfel apple: Saft Marmelade
    Kirsch cherry: *Kuchen Saft Marmelade Eis
    Pflaumen plum: Kuchen Marmelade *Saft
    Zitronen lemon: Kuchen Saft *Eis Tee
    Schokoladen chocolate: Kuchen Eis
    Birnen pear: Kuchen Saft *Marmelade
    Tomaten tomato: *Suppe Salat Saft
    Kartoffel potato: Suppe Salat
    Nudel noodle: Suppe Salat
    Fisch fish: Suppe Salat Markt
    Käse cheese: Suppe Brötchen Salat
"""
# German, English, comparatives of both ("-": none used).
ADJECTIVE_TABLE = """
    groß big größer bigger; klein small kleiner smaller; neu new neuer newer; alt old älter older
    jung young jünger younger; schön beautiful schöner more_beautiful; billig cheap billiger cheaper
    teuer expensive teurer more_expensive; schwer heavy schwerer heavier; leicht light leichter lighter
    lang long länger longer; kurz short kürzer shorter; schnell fast schneller faster; langsam slow langsamer slower
    klug smart klüger smarter; reich rich reicher richer; arm poor ärmer poorer
    freundlich friendly freundlicher friendlier; fleißig hard-working - -; berühmt famous berühmter more_famous
    interessant interesting interessanter more_interesting; langweilig boring langweiliger more_boring
    wichtig important wichtiger more_important; schwierig difficult schwieriger more_difficult
    einfach simple einfacher simpler; lustig funny lustiger funnier; traurig sad - -; ruhig quiet ruhiger quieter
    laut noisy lauter noisier; dunkel dark dunkler darker; hell bright heller brighter
    modern modern moderner more_modern; warm warm wärmer warmer; kalt cold kälter colder; heiß hot - -
    frisch fresh - -; süß sweet süßer sweeter; lecker delicious - -; gut good besser better; kaputt broken - -
    sauber clean - -; schmutzig dirty - -; nass wet - -; müde tired - -; krank sick - -; glücklich happy - -
    hungrig hungry - -; nett nice netter nicer; rot red - -; blau blue - -; grün green - -; gelb yellow - -
    schwarz black - -; weiß white - -; braun brown - -; grau gray - -
"""
COLORS = ["rot", "blau", "grün", "gelb", "schwarz", "weiß", "braun", "grau"]
TOO_MUCH = listed("""groß klein alt teuer schwer lang kurz langsam schnell laut dunkel warm kalt heiß süß müde
    krank schwierig schmutzig nass jung langweilig""")
SIZES_AND_AGES = ("groß", "klein", "neu", "alt", "schön", "teuer", "billig")
ADJECTIVES_OF = {  # what a group of nouns can be called
    "person": "jung alt nett freundlich müde krank glücklich klug reich arm fleißig berühmt traurig hungrig",
    "kin": "nett freundlich krank müde klug fleißig glücklich berühmt lustig traurig reich",
    "animal": "klein groß alt jung schwarz weiß braun grau müde schön hungrig schnell langsam",
    "thing": "groß klein neu alt schön teuer billig schwer leicht rot blau grün gelb schwarz weiß",
    "clothes": "neu alt schön teuer billig warm nass schmutzig sauber leicht " + " ".join(COLORS),
    "reading": "neu alt interessant langweilig schön wichtig gut",
    "device": "neu alt teuer billig modern kaputt groß klein schwer laut",
    "furniture": "groß klein neu alt schön teuer billig schwer braun weiß schwarz grau modern",
    "opening": "alt neu groß klein schmutzig sauber kaputt rot blau grün weiß braun",
    "fruit": "frisch groß klein lecker gut billig teuer",
    "cake": "süß lecker frisch groß klein warm gut",
    "dish": "heiß warm kalt lecker frisch gut",
    "salad": "lecker frisch gut groß klein",
    "food": "frisch lecker gut billig teuer",
    "hot": "heiß kalt warm frisch gut",
    "drink": "kalt süß gut billig teuer",
    "room": "groß klein hell dunkel sauber schmutzig schön modern ruhig warm kalt neu",
    "building": "groß klein alt neu schön modern berühmt ruhig laut hell dunkel",
    "sight": "groß klein alt neu schön berühmt",
    "place": "groß klein schön ruhig berühmt",
    "vehicle": "groß klein neu alt schnell langsam teuer billig modern laut rot blau gelb schwarz weiß",
    "talk": "wichtig schwierig einfach interessant neu alt",
    "tale": "schön alt neu traurig lustig kurz lang einfach",
    "event": "interessant langweilig lang kurz schön wichtig gut",
}
STEMS = {"teuer": "teur", "dunkel": "dunkl", "müde": "müd"}  # before an ending

# --- Lexicon: verbs --------------------------------------------------------------------------------
# infinitive (a separable prefix before "_"), du/er stem where it changes, participle ("+" = with
# sein) | English | the groups its object is from.
TRANSITIVE = """
    kaufen - gekauft | buy | thing clothes reading device furniture fruit cake food hot drink car
    verkaufen - verkauft | sell | thing clothes reading device furniture vehicle animal
    suchen - gesucht | look for | thing clothes reading animal building
    finden - gefunden | find | thing clothes reading animal; verlieren - verloren | lose | thing clothes reading
    vergessen vergiss vergessen | forget | thing clothes reading noted
    sehen sieh gesehen | see | person kin animal building sight show
    hören - gehört | hear | person kin animal tale vehicle; lesen lies gelesen | read | reading
    schreiben - geschrieben | write | written tale; essen iss gegessen | eat | fruit cake dish salad food
    trinken - getrunken | drink | hot drink; kochen - gekocht | cook | dish; backen - gebacken | bake | cake
    besuchen - besucht | visit | person kin building sight; treffen triff getroffen | meet | person kin
    fragen - gefragt | ask | person kin; malen - gemalt | paint | building sight animal
    putzen - geputzt | clean | room opening; waschen wäsch gewaschen | wash | clothes car
    reparieren - repariert | repair | device furniture vehicle opening; bauen - gebaut | build | built
    tragen träg getragen | wear | clothes; tragen träg getragen | carry | furniture
    fotografieren - fotografiert | photograph | person animal building sight; füttern - gefüttert | feed | animal
    beantworten - beantwortet | answer | question; singen - gesungen | sing | sung
    mieten - gemietet | rent | rented car; bezahlen - bezahlt | pay for | thing clothes hot drink cake
    bestellen - bestellt | order | dish salad cake hot drink book
    probieren - probiert | try | cake dish salad food drink; lernen - gelernt | learn | language sung
    an_rufen - angerufen | call | person kin; auf_machen - aufgemacht | open | opening opened
    zu_machen - zugemacht | close | opening; ein_laden läd eingeladen | invite | person kin
    mit_bringen - mitgebracht | bring along | fruit cake dish salad drink reading
    an_ziehen - angezogen | put on | clothes; an_probieren - anprobiert | try on | clothes
    auf_räumen - aufgeräumt | tidy up | room; ab_holen - abgeholt | pick up | person kin package
    an_machen - angemacht | turn on | switched; aus_machen - ausgemacht | turn off | switched
    ein_packen - eingepackt | pack | reading clothes; weg_werfen wirf weggeworfen | throw away | thing clothes
    auf_schreiben - aufgeschrieben | write down | noted; aus_leihen - ausgeliehen | borrow | book
"""
DITRANSITIVE = """
    geben gib gegeben | give | thing reading fruit hot; zeigen - gezeigt | show | thing reading building room
    schicken - geschickt | send | reading package; leihen - geliehen | lend | thing book car
    bringen - gebracht | bring | thing fruit cake dish salad hot drink; kaufen - gekauft | buy | thing clothes cake
    erklären - erklärt | explain to | noted; vor_lesen lies vorgelesen | read to | told
    zurück_geben gib zurückgegeben | return to | thing reading
"""
DATIVE = """
    helfen hilf geholfen | help | person kin; danken - gedankt | thank | person kin
    folgen - +gefolgt | follow | person animal; gratulieren - gratuliert | congratulate | person kin
    antworten - geantwortet | answer | person kin; zu_hören - zugehört | listen to | person kin
    vertrauen - vertraut | trust | person kin
"""
# with the preposition and its case; "sich" marks a reflexive verb
PREPOSITIONAL = """
    warten - gewartet | wait for | person kin vehicle | auf acc
    denken - gedacht | think of | person kin event | an acc
    sprechen sprich gesprochen | speak with | person kin | mit dat
    telefonieren - telefoniert | talk on the phone with | person kin | mit dat
    spielen - gespielt | play with | animal | mit dat; träumen - geträumt | dream of | awaited car | von dat
    lachen - gelacht | laugh about | told show | über acc; freuen - gefreut | look forward to | awaited | sich auf acc
    erinnern - erinnert | remember | person kin event | sich an acc
    interessieren - interessiert | be interested in | talk sight vehicle | sich für acc
    kümmern - gekümmert | take care of | person kin animal | sich um acc
"""
INTRANSITIVE = """
    arbeiten - gearbeitet | work; schlafen schläf geschlafen | sleep; tanzen - getanzt | dance
    lachen - gelacht | laugh; weinen - geweint | cry; singen - gesungen | sing; schwimmen - +geschwommen | swim
    frühstücken - gefrühstückt | have breakfast; ein_kaufen - eingekauft | shop
    fern_sehen sieh ferngesehen | watch television; auf_stehen - +aufgestanden | get up
    ein_schlafen schläf +eingeschlafen | fall asleep; auf_wachen - +aufgewacht | wake up
    zurück_kommen - +zurückgekommen | come back; an_kommen - +angekommen | arrive; um_ziehen - +umgezogen | move
"""
IDIOMS = """
    spielen - gespielt | play | soccer | Fußball; spielen - gespielt | play | the piano | Klavier
    spielen - gespielt | play | cards | Karten; lernen - gelernt | learn | German | Deutsch
    gehen - +gegangen | go | home | nach Hause; kommen - +gekommen | come | home | nach Hause
    gehen - +gegangen | go | to bed | ins Bett; gehen - +gegangen | go | for a walk | spazieren
    bleiben - +geblieben | stay | at home | zu Hause; fahren fähr +gefahren | ride | a bicycle | Fahrrad
"""
MOTION = """
    gehen - +gegangen | go; laufen läuf +gelaufen | run; fliegen - +geflogen | fly; fahren fähr +gefahren | travel
"""
MATRIX = """
    vergessen vergiss vergessen | forget; versuchen - versucht | try; beschließen - beschlossen | decide
    an_fangen fäng angefangen | begin
"""
COMPANY = (
    "sprechen sprich gesprochen | speak; tanzen - getanzt | dance; arbeiten - gearbeitet | work"
)
IRREGULAR = """
    buy bought bought; sell sold sold; find found found; lose lost lost; forget forgot forgotten; see saw seen
    hear heard heard; read read read; write wrote written; eat ate eaten; drink drank drunk; meet met met
    build built built; wear wore worn; feed fed fed; sing sang sung; pay paid paid; bring brought brought; put put put
    throw threw thrown; give gave given; show showed shown; send sent sent; lend lent lent; think thought thought
    speak spoke spoken; take took taken; sleep slept slept; swim swam swum; have had had; get got gotten
    fall fell fallen; wake woke woken; come came come; go went gone; ride rode ridden; run ran run; fly flew flown
    begin began begun; know knew known; understand understood understood
"""
DOUBLING = ("get", "put", "shop", "swim", "run", "forget", "begin")
UNPLANNED = listed("""verlieren vergessen weinen ein_schlafen auf_wachen erinnern denken interessieren freuen
    träumen vertrauen""")
MOMENTARY = [*UNPLANNED, "finden", "sehen", "hören", "treffen"]
NAMED_GROUPS = {  # objects of a few verbs, each noun by name (and the compounds with it)
    "question": "Frage",
    "language": "Sprache",
    "package": "Paket",
    "car": "Auto",
    "switched": "Radio Lampe Fernseher Computer",
    "locale": """Garten Park Küche Hotel Büro Stadt Markt Bahnhof Wohnzimmer Schule Dorf Strand
        Bibliothek Restaurant""",
    "opened": "Paket Koffer Flasche Brief Geschenk",
    "book": "Buch Wörterbuch Heft Zeitung",
    "written": "Brief Buch",
    "sung": "Lied",
    "told": "Brief Buch Geschichte",
    "lying": "Schlüssel Brief Buch Ball Ring Messer Handtuch Zeitung Heft Hemd Hut Jacke Wörterbuch",
    "standing": "Flasche Tasse Koffer Lampe Radio Fernseher Computer",
    "hanging": "Bild Mantel Jacke Spiegel Regenschirm Hut Uhr",
    "sold": "Haus Wohnung Hotel Supermarkt Restaurant",
    "bridge": "Brücke",
    "tower": "Turm",
    "held": "Konzert Spiel Prüfung Besprechung Fest Kurs",
    "public": "Museum Bibliothek Restaurant Supermarkt Bäckerei Apotheke Rathaus Kino",
    "noted": "Wort Frage Antwort Plan Problem",
    "show": "Film Konzert Spiel",
    "awaited": "Film Konzert Spiel Reise Fest",
    "rented": "Wohnung Zimmer Büro Garage Haus",
    "built": "Haus Schule Kirche Hotel Museum Brücke Turm",
}

# --- Lexicon: adverbs, places, names ---------------------------------------------------------------
WEEKDAYS = listed("""Montag Monday Dienstag Tuesday Mittwoch Wednesday Donnerstag Thursday Freitag Friday
    Samstag Saturday Sonntag Sunday""")
MONTHS = listed("""Januar January Februar February März March April April Mai May Juni June Juli July
    August August September September Oktober October November November Dezember December""")
PAST_TIMES = """gestern yesterday; vorgestern the_day_before_yesterday; letzte_Woche last_week
    letzten_Monat last_month; letztes_Jahr last_year; gestern_Abend yesterday_evening
    heute_Morgen this_morning; letzten_Sommer last_summer; im_Winter in_the_winter"""
FUTURE_TIMES = """morgen tomorrow; übermorgen the_day_after_tomorrow; nächste_Woche next_week
    nächsten_Monat next_month; nächstes_Jahr next_year; morgen_früh tomorrow_morning
    heute_Abend this_evening; bald soon; im_Sommer in_the_summer"""
HABITS = """jeden_Tag every_day; jeden_Morgen every_morning; jeden_Abend every_evening
    jede_Woche every_week; am_Wochenende on_the_weekend; im_Winter in_the_winter"""
FREQUENCIES = "oft often; immer always; manchmal sometimes; selten rarely; nie never"
WHERE = {  # in which place, to which place, and the English of the first; else "in in in"
    "Bahnhof": "an zu at", "Flughafen": "an zu at", "Markt": "auf auf at", "Strand": "an an on",
    "See": "an an by", "Fluss": "an an by", "Insel": "auf auf on", "Spielplatz": "auf auf on",
    "Bäckerei": "in zu in", "Apotheke": "in zu in", "Rathaus": "in zu in",
}  # fmt: skip
CONTRACTIONS = {"in dem": "im", "in das": "ins", "an dem": "am", "an das": "ans",
                "zu dem": "zum", "zu der": "zur", "von dem": "vom"}  # fmt: skip
VEHICLES = (
    "dem_Zug train; dem_Bus bus; dem_Auto car; dem_Schiff ship; dem_Fahrrad bicycle; dem_Taxi taxi"
)
FIRST_NAMES = {
    "f": listed("Anna Maria Julia Laura Clara Nina"),
    "m": listed("Paul Peter Thomas Felix Emil Jonas"),
}
CITIES = listed("""Berlin Berlin Hamburg Hamburg Leipzig Leipzig Dresden Dresden Bremen Bremen
    München Munich Köln Cologne Wien Vienna Nürnberg Nuremberg Zürich Zurich""")
NAME_PARTS = {  # every beginning goes with every ending
    "f": ("Mar Lin Tor Bel Kal Ro Sel Da Ben Fel Ja Ka Le Mi Na Ol Pa Ri Sa Ta Va Wil Ed Hel Ger",
          "ika ana ella linde dora nia lia rena trud mira"),
    "m": ("Mar Lin Tor Bel Kal Ro Sel Da Ben Fel Ja Ka Le Mi Na Ol Pa Ri Sa Ta Va Wil Ed Hel Ger",
          "ino rik mund bert vin tilo dan nik win ko"),
    "last": ("Stein Berg Wald Feld Hof Neu Hart Kirch Brunn Linden Rott Eich Dorn Gold Lang Reich",
             "mann meier inger huber hauer bauer müller städter hofer egger"),
    "town": ("Alten Neuen Ober Unter Stein Linden Birken Eschen Rosen Wald Sonnen Mühl Hirsch Falken "
             "Silber Tannen Königs Winter", "bach feld berg dorf hausen heim burg tal rode au brück stein"),
}  # fmt: skip
# pronoun, accusative, dative, English, English object, person, possessive, English, who it clashes with
PRONOUN_TABLE = """
    ich mich mir I me 0 mein my ich,wir; du dich dir you you 1 dein your du,ihr,Sie
    er ihn ihm he him 2 sein his -; sie - ihr she her 2 ihr her -
    wir uns uns we us 3 unser our ich,wir; ihr euch euch you you 4 euer your du,ihr,Sie
    sie5 - ihnen they them 5 ihr their -; Sie Sie Ihnen you you 5 Ihr your du,ihr,Sie
"""
STATES = "müde tired; krank sick; hungrig hungry; glücklich happy; traurig sad"
PAST_WEATHER = """es_geregnet_hat it_rained; es_zu_kalt_war it_was_too_cold; es_geschneit_hat it_snowed
    das_Wetter_schön_war the_weather_was_beautiful; das_Wetter_schlecht_war the_weather_was_bad
    es_schon_dunkel_war it_was_already_dark; der_Bus_zu_spät_gekommen_ist the_bus_came_late"""
WEATHER = """es_regnet it_rains; es_zu_kalt_ist it_is_too_cold; es_schneit it_snows
    das_Wetter_schön_ist the_weather_is_beautiful; das_Wetter_schlecht_ist the_weather_is_bad
    der_Zug_zu_spät_ankommt the_train_arrives_late"""
PROFESSIONS = """m Arzt doctor; m Lehrer teacher; m Polizist police_officer; m Bäcker baker
    m Kellner waiter; m Bauer farmer; m Student student; f Ärztin doctor; f Lehrerin teacher
    f Künstlerin artist; f Studentin student"""
OWNED_PERSONS = listed(
    "Lehrer Lehrerin Arzt Ärztin Nachbar Nachbarin Kollege Kollegin Freund Chefin"
)
FURNITURE_ON = "Tisch Stuhl Schrank Schreibtisch Bett Sofa Regal"
SURFACES = "auf on; unter under; neben next_to; hinter behind; vor in_front_of"
PLACED = listed("""finden verlieren vergessen lesen schreiben essen trinken treffen arbeiten schlafen
    tanzen lachen weinen singen frühstücken""")
MANNERS = "schnell quickly; langsam slowly; allein alone"
HURRIED = listed("gehen laufen schwimmen arbeiten frühstücken tanzen")
FOND = listed("lesen essen trinken backen tragen malen fotografieren singen")
STATIVE = """
    brauchen - gebraucht | need | thing clothes reading device furniture
    haben - gehabt | have | thing clothes device animal car; kennen - gekannt | know | person kin sight
    mögen - gemocht | like | fruit cake dish salad food hot drink person kin
    verstehen - verstanden | understand | noted language
"""


# --- Words -----------------------------------------------------------------------------------------
def table(text: str) -> list[list[str]]:
    """Rows of a lexicon table (ended by ";" or the line), as words with "_" made a space."""
    rows = [row.split() for row in re.split(r"[;\n]", text)]
    return [[word.replace("_", " ") for word in row] for row in rows if row]


@dataclass(frozen=True)
class Noun:
    """A noun; `head` is the last part of a compound, which decides how the whole behaves."""

    gender: str
    lemma: str
    plural: str
    en: str
    en_plural: str
    group: str
    head: str
    weak: bool = False

    @property
    def mass(self) -> bool:
        return self.plural == "-" and self.group != "kin"


def read_nouns() -> dict[str, Noun]:
    """The simple nouns by lemma."""
    nouns = {}
    for group, text in NOUN_TABLE.items():
        for gender, lemma, *rest in table(text):
            weak = gender == "w"
            nouns[lemma] = Noun("m" if weak else gender, lemma, *rest, group, lemma, weak)
    return nouns


def read_compounds() -> tuple[dict[str, Noun], list[str]]:
    """The compounds built from two parts, by lemma, and the lemmas of those that are held out."""
    compounds, starred = {}, []
    for line in COMPOUND_TABLE.strip().splitlines():
        first, heads = line.split(":")
        start, start_en = first.split()
        for mark in heads.split():
            head = NOUNS[mark.lstrip("*")]
            compounds[start + head.lemma.lower()] = replace(
                head,
                lemma=start + head.lemma.lower(),
                plural="-" if head.mass else start + head.plural.lower(),
                en=f"{start_en} {head.en}",
                en_plural=f"{start_en} {head.en_plural}",
            )
            starred += [start + head.lemma.lower()] * mark.startswith("*")
    return compounds, starred


NOUNS = read_nouns()
COMPOUNDS, HELD_OUT_COMPOUNDS = read_compounds()
ADJECTIVES = {row[0]: row[1:] for row in table(ADJECTIVE_TABLE)}
CITY_NAMES = dict(zip(CITIES[::2], CITIES[1::2], strict=True))
COMPOSED_NAMES = {
    kind: [
        a + b
        for a in starts.split()
        for b in ends.split()
        if a[-1] != b[0] and not b.startswith(a.lower())
    ]
    for kind, (starts, ends) in NAME_PARTS.items()
}


def members(group: str, table_: dict[str, Noun]) -> list[Noun]:
    """The nouns of a group, or those whose head NAMED_GROUPS lists for it."""
    named = NAMED_GROUPS.get(group, "").split()
    return [noun for noun in table_.values() if noun.group == group or noun.head in named]


def held_out(kind: str, key: str) -> bool:
    """Whether a number, name, compound or adjective-noun pair is kept out of the training set."""
    if kind == "compound":
        return key in HELD_OUT_COMPOUNDS
    if kind == "number" and int(key) <= 20:
        return False
    percent = {"number": 12, "name": 15, "pair": 13}[kind]
    return zlib.crc32(f"{kind} {key}".encode()) % 100 < percent


# --- German noun phrases ---------------------------------------------------------------------------
CASES = ("nom", "acc", "dat", "gen")
DEFINITE = {
    "m": ("der", "den", "dem", "des"),
    "f": ("die", "die", "der", "der"),
    "n": ("das", "das", "dem", "des"),
    "p": ("die", "die", "den", "der"),
}
STRONG = {
    "m": ("er", "en", "em", "es"),
    "f": ("e", "e", "er", "er"),
    "n": ("es", "es", "em", "es"),
    "p": ("e", "e", "en", "er"),
}
LIKE_EIN = ("ein", "kein", "mein", "dein", "sein", "ihr", "Ihr", "unser", "euer")
EN_DETERMINERS = {"": "", "der": "the", "ein": "a", "dies": "this", "welch": "which"}


def bare(det: str, gender: str, case: str) -> bool:
    """Whether an ein-word has no ending here, so that the adjective has to show the gender."""
    return det in LIKE_EIN and (
        (gender in "mn" and case == "nom") or (gender, case) == ("n", "acc")
    )


def determiner(det: str, gender: str, case: str) -> str:
    """`det` ("der", "ein", "mein", "dies", ... or "" for none) declined; gender "p" is plural."""
    if det == "" or bare(det, gender, case):
        return det
    if det == "der":
        return DEFINITE[gender][CASES.index(case)]
    return ("eur" if det == "euer" else det) + STRONG[gender][CASES.index(case)]


def adjective(word: str, det: str, gender: str, case: str) -> str:
    """An adjective with its strong ending (nothing before it shows the case) or its weak one."""
    if det == "" and case == "gen" and gender in "mn":
        ending = "en"
    elif det == "" or bare(det, gender, case):
        ending = STRONG[gender][CASES.index(case)]
    else:
        ending = (
            "e" if gender != "p" and (case == "nom" or (case == "acc" and gender in "fn")) else "en"
        )
    return STEMS.get(word, word) + ending


def noun_form(noun: Noun, case: str, plural: bool) -> str:
    """A noun in its case: -n in the dative plural, -(e)s in the genitive, -(e)n for weak nouns."""
    if plural:
        word = noun.lemma if noun.gender == "p" else noun.plural
        return word + "n" if case == "dat" and word[-1] not in "ns" else word
    if noun.weak and case != "nom":
        return noun.plural
    if case == "gen" and noun.gender in "mn":
        short = len(re.findall("[aeiouyäöü]+", noun.lemma.lower())) == 1
        return noun.lemma + ("es" if short or noun.lemma[-1] in "sßz" else "s")
    return noun.lemma


@dataclass(frozen=True)
class NP:
    """A noun phrase or pronoun: its German cases, its English, and what clauses must know of it."""

    forms: tuple[str, ...]
    en: str
    en_object: str = ""
    person: int = 2
    own: Pair = ("", "")
    again: str = ""
    clash: tuple[str, ...] = ()
    kein: bool = False
    indefinite: bool = False

    def de(self, case: str) -> str:
        return self.forms[CASES.index(case)]

    def with_clause(self, de: str, en: str) -> NP:
        """The phrase with a relative clause after it."""
        return replace(
            self, forms=tuple(f"{form}, {de}" for form in self.forms), en=f"{self.en} {en}"
        )

    @property
    def obj(self) -> str:
        return self.en_object or self.en

    @property
    def en_genitive(self) -> str:
        return self.en + ("'" if self.en.endswith("parents") else "'s")


def english_determiner(det: str, plural: bool, mass: bool) -> str:
    """The English of a determiner: "kein" is the a or any of a negated sentence."""
    if det == "kein":
        return "any" if plural or mass else "a"
    return "these" if det == "dies" and plural else EN_DETERMINERS[det]


def join(*parts: str) -> str:
    """Parts with a space between those that are not empty."""
    return " ".join(part for part in parts if part)


def with_article(words: str) -> str:
    """ "a red apple", "an apple": the article's form follows the next letter."""
    return re.sub(r"\ba (?=[aeiou])", "an ", words)


def noun_phrase(
    noun: Noun,
    det: str = "",
    adjectives: Sequence[str] = (),
    plural: bool = False,
    count: int = 0,
    en: str = "",
) -> NP:
    """Determiner or number, adjectives and noun; `en` is the English of a possessive."""
    plural = plural or count > 1 or noun.gender == "p"
    gender = "p" if plural else noun.gender
    forms = tuple(
        join(
            number_de(count) if count else determiner(det, gender, case),
            *(adjective(word, det, gender, case) for word in adjectives),
            noun_form(noun, case, plural),
        )
        for case in CASES
    )
    first = number_en(count) if count else en or english_determiner(det, plural, noun.mass)
    words = join(
        first, *(ADJECTIVES[word][0] for word in adjectives), noun.en_plural if plural else noun.en
    )
    again = "sie5" if plural else {"m": "er", "f": "sie"}.get(gender, "")
    own = {"sie5": ("ihr", "their"), "er": ("sein", "his"), "sie": ("ihr", "her")}.get(
        again, ("", "")
    )
    return NP(
        forms,
        with_article(words),
        person=5 if plural else 2,
        own=own,
        again=again,
        kein=det == "kein",
        indefinite=det in ("", "ein", "kein"),
    )


def read_pronouns() -> dict[str, NP]:
    """The personal pronouns by key; "sie5" is the plural, whose form is written "sie"."""
    pronouns = {}
    for key, acc, dat, en, obj, person, own, own_en, clash in table(PRONOUN_TABLE):
        forms = (key.rstrip("5"), acc, dat, "")
        clashes = tuple(clash.split(","))
        pronouns[key] = NP(forms, en, obj, int(person), (own, own_en), key, clashes)
    return pronouns


PRONOUNS = read_pronouns()


def prepositional(preposition: str, phrase: str) -> str:
    """Preposition and noun phrase, run together where German does ("in dem Park" -> "im Park")."""
    words = f"{preposition} {phrase}"
    for pair, short in CONTRACTIONS.items():
        if words.startswith(pair + " "):
            return short + words[len(pair) :]
    return words


# --- Numbers, prices, times, dates -----------------------------------------------------------------
UNITS_DE = listed("""null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn
    fünfzehn sechzehn siebzehn achtzehn neunzehn""")
TENS_DE = listed("zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig")
UNITS_EN = listed("""zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen
    fifteen sixteen seventeen eighteen nineteen""")
TENS_EN = listed("twenty thirty forty fifty sixty seventy eighty ninety")
ORDINALS_DE = {1: "erst", 3: "dritt", 7: "siebt", 8: "acht"}
ORDINALS_EN = {
    "one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth",
    "nine": "ninth", "twelve": "twelfth", "twenty": "twentieth", "thirty": "thirtieth",
}  # fmt: skip


def number_de(n: int, one: str = "eins") -> str:
    """0 to 999,999 in German words; a closing 1 is `one`: "eins" in counting, "ein" before Uhr."""
    if not 0 <= n <= 999_999:
        raise ValueError(f"number_de: {n} is not between 0 and 999,999")
    if n < 20:
        return one if n == 1 else UNITS_DE[n]
    if n < 100:
        tens, unit = TENS_DE[n // 10 - 2], n % 10
        return f"{number_de(unit, 'ein')}und{tens}" if unit else tens
    size, word = (1000, "tausend") if n >= 1000 else (100, "hundert")
    head = "" if n // size == 1 else number_de(n // size, "ein")
    rest = n % size
    # Inside a number the hundred keeps its one: tausendeinhundert, but hundert and hunderttausend.
    inner = "ein" if size == 1000 and 100 <= rest < 200 else ""
    return head + word + (inner + number_de(rest, one) if rest else "")


def number_en(n: int) -> str:
    """0 to 999,999 in American English words, without "and"."""
    if not 0 <= n <= 999_999:
        raise ValueError(f"number_en: {n} is not between 0 and 999,999")
    if n < 20:
        return UNITS_EN[n]
    if n < 100:
        return TENS_EN[n // 10 - 2] + (f"-{UNITS_EN[n % 10]}" if n % 10 else "")
    size, word = (1000, "thousand") if n >= 1000 else (100, "hundred")
    return join(number_en(n // size), word, number_en(n % size) if n % size else "")


def ordinal_de(n: int) -> str:
    """The stem of a German ordinal, 1 to 99: "dritt", "zwanzigst"."""
    return ORDINALS_DE.get(n, number_de(n) + ("t" if n < 20 else "st"))


def ordinal_en(n: int) -> str:
    """An English ordinal, 1 to 99: "third", "twenty-first"."""
    head, dash, last = number_en(n).rpartition("-")
    return head + dash + ORDINALS_EN.get(last, last + "th")


def year_words(year: int) -> Pair:
    """1110 to 1999: "neunzehnhundertvierundachtzig", "nineteen eighty-four"; 2000 on: the number."""
    if year >= 2000:
        return number_de(year), number_en(year)
    century, rest = divmod(year, 100)
    return (
        f"{number_de(century)}hundert{number_de(rest)}",
        f"{number_en(century)} {number_en(rest)}",
    )


def clock(hour: int, minute: int) -> Pair:
    """A time on the twelve-hour clock, minute a multiple of 5: "fünf vor halb acht"."""
    this_de, this_en = number_de(hour), number_en(hour)
    next_de, next_en = number_de(hour % 12 + 1), number_en(hour % 12 + 1)
    if minute == 0:
        return f"{number_de(hour, 'ein')} Uhr", f"{this_en} o'clock"
    if minute == 30:
        return f"halb {next_de}", f"half past {this_en}"
    before = minute > 30
    en = number_en(60 - minute if before else minute).replace("fifteen", "a quarter")
    en = f"{en} to {next_en}" if before else f"{en} past {this_en}"
    if minute in (25, 35):
        return f"fünf {'nach' if before else 'vor'} halb {next_de}", en
    de = number_de(60 - minute if before else minute).replace("fünfzehn", "Viertel")
    return (f"{de} vor {next_de}" if before else f"{de} nach {this_de}"), en


def price_words(euros: int, cents: int) -> Pair:
    """What is paid, an accusative: "einen Euro zwanzig", "drei Euro", "three euros fifty"."""
    de = f"{number_de(euros, 'einen')} Euro"
    en = f"{number_en(euros)} {'euro' if euros == 1 else 'euros'}"
    return (f"{de} {number_de(cents)}", f"{en} {number_en(cents)}") if cents else (de, en)


# --- Verbs and clauses -----------------------------------------------------------------------------
HAVE_DE = listed("habe hast hat haben habt haben")
BE_DE = listed("bin bist ist sind seid sind")
HAD_DE = listed("hatte hattest hatte hatten hattet hatten")
WAS_DE = listed("war warst war waren wart waren")
BE_EN, WAS_EN = listed("am are is are are are"), listed("was were was were were were")
PRESENT_DE = {
    "haben": HAVE_DE,
    "mögen": listed("mag magst mag mögen mögt mögen"),
}
REFLEXIVES = listed("mich dich sich uns euch sich")
MODALS = {  # German forms; English: an auxiliary, or a phrase in its present (+) or past (-)
    "future": ("werde wirst wird werden werdet werden", "will"),
    "can": ("kann kannst kann können könnt können", "can"),
    "could": ("konnte konntest konnte konnten konntet konnten", "could"),
    "should": ("sollte solltest sollte sollten solltet sollten", "should"),
    "would": ("möchte möchtest möchte möchten möchtet möchten", "would like to"),
    "must": ("muss musst muss müssen müsst müssen", "+have to"),
    "had to": ("musste musstest musste mussten musstet mussten", "-have to"),
    "want": ("will willst will wollen wollt wollen", "+want to"),
    "wanted": ("wollte wolltest wollte wollten wolltet wollten", "-want to"),
    "may": ("darf darfst darf dürfen dürft dürfen", "+be allowed to"),
}
PAST_MODALS = ("had to", "could", "wanted")
IRREGULAR_FORMS = {row[0]: row for row in table(IRREGULAR)}


@dataclass(frozen=True)
class Verb:
    """A German verb ("_" after a separable prefix) and its English."""

    inf: str
    changed: str
    participle: str
    en: str

    @property
    def prefix(self) -> str:
        return self.inf.partition("_")[0] if "_" in self.inf else ""

    @property
    def base(self) -> str:
        return self.inf.split("_")[-1]

    @property
    def infinitive(self) -> str:
        return self.prefix + self.base

    @property
    def with_zu(self) -> str:
        return f"{self.prefix}zu{self.base}" if self.prefix else f"zu {self.base}"

    def present(self, person: int) -> str:
        """The present form without its prefix; persons 0-5 are ich, du, er, wir, ihr, sie."""
        if self.base in PRESENT_DE:
            return PRESENT_DE[self.base][person]
        if person in (3, 5):
            return self.base
        stem = re.sub("e?n$", "", self.base)
        change = self.changed != "-" and person in (1, 2)
        stem = self.changed if change else stem
        if person == 0:
            return stem + "e"
        ending = "st" if person == 1 and stem[-1] not in "sßz" else "t"
        return stem + ("e" if stem[-1] in "td" and not change else "") + ending


def read_verbs(text: str) -> list[tuple[Verb, list[str]]]:
    """A verb table's rows: the verb, and what follows in its later columns."""
    lines = re.split(r"[;\n]", text.strip())
    rows = [[part.strip() for part in line.split("|")] for line in lines]
    return [(Verb(*row[0].split(), row[1]), row[2:]) for row in rows]


def inflect(en: str, form: str) -> str:
    """An English verb phrase whose first word is put in the form "s", "past", "pp" or "ing"."""
    verb, _, rest = en.partition(" ")
    if form == "ing":
        stem = verb + verb[-1] if verb in DOUBLING else verb
        return join(re.sub("(?<=[^e])e$", "", stem) + "ing", rest)
    if form == "s":
        if verb == "have":
            return join("has", rest)
        stem = re.sub("(?<=[^aeiou])y$", "ie", verb)
        return join(stem + ("es" if re.search("(s|x|z|ch|sh|o)$", stem) else "s"), rest)
    if verb in IRREGULAR_FORMS:
        return join(IRREGULAR_FORMS[verb][1 if form == "past" else 2], rest)
    stem = verb + verb[-1] if verb in DOUBLING else re.sub("(?<=[^aeiou])y$", "i", verb)
    return join(stem.removesuffix("e") + "ed", rest)


def predicate_en(en: str, tense: str, person: int, support: bool) -> Pair:
    """(auxiliary, rest) of an English verb; `support` asks for an auxiliary (not, questions)."""
    third, rest = person == 2, en.removeprefix("be ")
    if tense == "gern":
        return predicate_en(f"like to {en}", "present", person, support)
    if tense in MODALS:
        phrase = MODALS[tense][1]
        if phrase[0] in "+-":
            inner = "present" if phrase[0] == "+" else "past"
            return predicate_en(f"{phrase[1:]} {en}", inner, person, support)
        return phrase.partition(" ")[0], join(phrase.partition(" ")[2], en)
    tense = "present" if tense == "state" else tense
    if tense == "now":
        return BE_EN[person], inflect(en, "ing")
    if tense == "perfect":
        return ("has" if third else "have"), inflect(en, "pp")
    if en.startswith("be "):
        return (BE_EN if tense == "present" else WAS_EN)[person], rest
    if support:
        return ("did" if tense == "past" else "does" if third else "do"), en
    return "", inflect(en, "past") if tense == "past" else inflect(en, "s") if third else en


@dataclass(frozen=True)
class VP:
    """A verb with its complements; German parts in the order in which a clause takes them."""

    verb: Verb
    en: str = ""
    pronoun: str = ""
    objects: str = ""
    tail: str = ""
    kein: bool = False
    indefinite: bool = False
    place: bool = False  # may have a place adverbial


NONE = ("", "")


@dataclass(frozen=True)
class Clause:
    """Subject, verb phrase, tense and adverbials: realised by `german` and `english`."""

    subject: NP
    vp: VP
    tense: str
    neg: str = ""
    time: Pair = NONE
    often: Pair = NONE
    place: Pair = NONE
    manner: Pair = NONE

    @property
    def negated(self) -> bool:
        return self.vp.kein or self.neg in ("nicht", "noch nicht")


def finite_and_end(c: Clause) -> Pair:
    """The finite verb, and what closes the clause: prefix, participle or infinitive."""
    verb, person = c.vp.verb, c.subject.person
    if c.tense in MODALS:
        return MODALS[c.tense][0].split()[person], verb.infinitive
    if c.tense in ("past", "perfect"):
        auxiliary = BE_DE if verb.participle.startswith("+") else HAVE_DE
        return auxiliary[person], verb.participle.removeprefix("+")
    return verb.present(person), verb.prefix


def middle(c: Clause, time: bool = True) -> str:
    """What stands between the two parts of the verb, with or without the time."""
    pronoun = REFLEXIVES[c.subject.person] if c.vp.pronoun == "sich" else c.vp.pronoun
    start = (pronoun, c.time[0] if time else "", c.often[0])
    if c.vp.indefinite:  # an indefinite object is the news and comes late
        return join(*start, c.place[0], c.vp.objects, c.manner[0], c.vp.tail)
    return join(*start, c.vp.objects, c.neg, c.manner[0], c.place[0], c.vp.tail)


def german(c: Clause, order: str = "main") -> str:
    """Order "main" and "time" (verb second, after subject or time), "first" (question), "last"."""
    (finite, end), subject = finite_and_end(c), c.subject.de("nom")
    if order == "last":
        return join(
            subject, middle(c), f"{end}{finite}" if end == c.vp.verb.prefix else f"{end} {finite}"
        )
    if order == "time":
        return join(c.time[0], finite, subject, middle(c, time=False), end)
    return join(*((finite, subject) if order == "first" else (subject, finite)), middle(c), end)


def english(c: Clause, order: str = "main") -> str:
    """Order "main", "time" (the time first) or "q" (a question: the auxiliary first)."""
    auxiliary, rest = predicate_en(
        c.vp.verb.en, c.tense, c.subject.person, c.negated or order == "q"
    )
    start = (auxiliary, c.subject.en) if order == "q" else (c.subject.en, auxiliary)
    often = "already" if c.neg == "schon" else c.often[1]
    first, last = (c.time[1], "") if order == "time" else ("", c.time[1])
    yet = "yet" if c.neg == "noch nicht" else ""
    after = (rest, c.vp.en, c.manner[1], c.place[1], last, yet)
    return join(first, *start, "not" if c.negated else "", often, *after).replace(
        "can not ", "cannot "
    )


# --- Composition -----------------------------------------------------------------------------------
POOLS = {
    group: (members(group, NOUNS), members(group, COMPOUNDS))
    for group in (*NOUN_TABLE, *NAMED_GROUPS)
}
VERBS = {
    "transitive": read_verbs(TRANSITIVE),
    "ditransitive": read_verbs(DITRANSITIVE),
    "dative": read_verbs(DATIVE),
    "prepositional": read_verbs(PREPOSITIONAL),
    "intransitive": read_verbs(INTRANSITIVE),
    "idiom": read_verbs(IDIOMS),
    "stative": read_verbs(STATIVE),
    "matrix": read_verbs(MATRIX),
    "company": read_verbs(COMPANY),
}
GO, RUN, FLY, TRAVEL = (verb for verb, _ in read_verbs(MOTION))
SEE_OR_MEET = [
    verb.inf for verb, (groups,) in VERBS["transitive"] if re.search("person|animal", groups)
]
LEMMA, VERB = operator.attrgetter("lemma"), lambda row: row[0].inf
THINGS = "thing clothes reading device furniture"
NO_NOUN = NP(("",) * 4, "")


class Composer:
    """Draws words, phrases and clauses; `unseen` lets it take what is held out of training."""

    def __init__(self, seed: int, unseen: bool) -> None:
        self.random = random.Random(seed).random
        self.unseen = unseen
        self.used: Counter[str] = Counter()

    def below(self, n: int) -> int:
        return int(self.random() * n)

    def chance(self, p: float) -> bool:
        return self.random() < p

    def pick(self, items: Sequence[T]) -> T:
        return items[self.below(len(items))]

    def rare(self, items: Sequence[T], key: Callable[[T], str]) -> T:
        """Of six drawn the one used least so far, so that every word of the lexicon is met."""
        item = min((self.pick(items) for _ in range(6)), key=lambda item: self.used[key(item)])
        self.used[key(item)] += 1
        return item

    def row(self, text: str) -> Pair:
        de, en = self.pick(table(text))
        return de, en

    def screened(self, kind: str, draw: Callable[[], T], key: Callable[[T], str] = str) -> T:
        """Draw until the item is on the wanted side of `held_out`; training never crosses it."""
        wanted = self.unseen and self.chance(UNSEEN_SHARE)
        for attempt in range(200):
            item = draw()
            if held_out(kind, key(item)) == (wanted and attempt < 40):
                return item
        raise RuntimeError(f"screened: no {kind} may be used here; the last one drawn was {item}")

    # Numbers, times, dates

    def number(self, low: int, high: int) -> int:
        """A number, its length drawn first, often round; never ...01, which no noun follows well."""

        def draw() -> int:
            top = min(
                high, 10 ** (len(str(low)) + self.below(len(str(high)) - len(str(low)) + 1)) - 1
            )
            n = low + self.below(top - low + 1)
            if n >= 200 and self.chance(0.3):
                size = 10 ** (len(str(n)) - 1 - self.below(2))
                n = max(low, n // size * size)
            return n if n % 100 != 1 else n + 1

        return self.screened("number", draw)

    def counted(self, low: int, high: int) -> Pair:
        n = self.number(low, high)
        return number_de(n), number_en(n)

    def span(self, units: str) -> Pair:
        n, unit = self.counted(2, 40), self.row(units)
        return f"{n[0]} {unit[0]}", f"{n[1]} {unit[1]}"

    def price(self) -> Pair:
        """In words with or without cents, or in figures."""
        euros, draw = 1 + self.below(20), self.random()
        cents = self.screened("number", lambda: 5 * (2 + self.below(18)))
        if draw < 0.3:
            figures = f"{2 + self.below(98)}.{10 + self.below(90)}"
            return f"{figures.replace('.', ',')} Euro", f"{figures} euros"
        return price_words(euros if draw < 0.7 else self.number(2, 900), cents if draw < 0.7 else 0)

    def sum(self) -> Pair:
        """A line of arithmetic whose three numbers are all allowed."""
        while True:
            a, b = self.number(1, 99), self.number(1, 99)
            signs = (("plus", "plus", a + b), ("minus", "minus", a - b), ("mal", "times", a * b))
            de, en, c = self.pick(signs)
            if 0 < c < 1000 and (self.unseen or not held_out("number", str(c))):
                return (
                    f"{number_de(a)} {de} {number_de(b)} ist {number_de(c)}",
                    f"{number_en(a)} {en} {number_en(b)} is {number_en(c)}",
                )

    def clock(self) -> Pair:
        minute = 5 * self.below(12)
        return clock(1 + self.below(12), self.pick((minute, minute, 0, 15, 30, 45)))

    def date(self) -> NP:
        """A day of the year: "der dritte März", "am dritten März"."""
        day, k = 1 + self.below(31 if self.chance(0.4) else 28), 2 * self.below(12)
        day = min(day, {2: 28, 6: 30, 10: 30, 16: 30, 20: 30}.get(k, 31))
        forms = tuple(
            f"{ordinal_de(day)}{ending} {MONTHS[k]}" for ending in ("e", "en", "en", "en")
        )
        return NP(forms, f"the {ordinal_en(day)} of {MONTHS[k + 1]}")

    def weekday(self) -> Pair:
        k = 2 * self.below(7)
        return WEEKDAYS[k], WEEKDAYS[k + 1]

    def day(self) -> Pair:
        """A day as an adverbial: "am Montag", "am dritten März", "am 3. März"."""
        draw, (weekday, weekday_en) = self.random(), self.weekday()
        if draw < 0.4:
            return f"am {weekday}", f"on {weekday_en}"
        if draw < 0.7:
            date = self.date()
            return f"am {date.de('dat')}", f"on {date.en}"
        day, k = 1 + self.below(28), 2 * self.below(12)
        return f"am {day}. {MONTHS[k]}", f"on {MONTHS[k + 1]} {day}"

    def time(self, tense: str) -> Pair:
        """An adverbial of time that goes with the tense."""
        draw, past = self.random(), tense in ("past", *PAST_MODALS)
        if draw < 0.15:
            return self.day()
        if draw < 0.2:
            de, en = self.clock()
            return f"um {de}", f"at {en}"
        if draw < 0.3:
            de, en = self.span("Tagen days; Wochen weeks; Monaten months; Stunden hours")
            return (f"vor {de}", f"{en} ago") if past else (f"in {de}", f"in {en}")
        return self.row(PAST_TIMES if past else FUTURE_TIMES)

    # Names and nouns

    def name(self, kind: str) -> str:
        return self.screened("name", lambda: self.pick(COMPOSED_NAMES[kind]))

    def first_name(self, gender: str = "") -> str:
        """A first name of the gender, else of any."""
        gender = gender or self.pick("fm")
        return self.pick(FIRST_NAMES[gender]) if self.chance(0.3) else self.name(gender)

    def town(self) -> Pair:
        if self.chance(0.4):
            return self.pick(list(CITY_NAMES.items()))
        town = self.name("town")
        return town, town

    def titled(self) -> NP:
        name = self.name("last")
        if self.chance(0.5):
            forms = (f"Herr {name}", *[f"Herrn {name}"] * 3)
            return NP(forms, f"Mr. {name}", own=("sein", "his"), again="er")
        return NP((f"Frau {name}",) * 4, f"Ms. {name}", own=("ihr", "her"), again="sie")

    def noun(self, groups: str) -> Noun:
        """A noun of one of the groups, a compound in every third case where there are any."""
        simple, compounds = POOLS[
            self.pick([g for g in groups.split() for _ in range(len(POOLS[g][0]))])
        ]
        if self.chance(min(0.35, len(compounds) / (len(compounds) + 2 * len(simple)))):
            return self.screened("compound", partial(self.rare, compounds, LEMMA), LEMMA)
        return self.rare(simple, LEMMA)

    def adjectives(self, noun: Noun, share: float) -> list[str]:
        """None, one or two adjectives that suit the noun; of two, the second is a colour."""

        def suitable(words: Sequence[str]) -> str:
            draw = partial(self.rare, words, str)
            return self.screened("pair", draw, lambda word: f"{word} {noun.lemma}")

        if not self.chance(share):
            return []
        words = ADJECTIVES_OF[noun.group].split()
        colors = [word for word in words if word in COLORS]
        if len(colors) > 2 and self.chance(0.2):
            return [suitable([w for w in words if w in SIZES_AND_AGES]), suitable(colors)]
        return [suitable(words)]

    def possessive(self, owner: NP) -> Pair:
        """Mostly the subject's own; "dein" only where nobody is addressed as Sie or ihr."""
        if owner.own[0] and self.chance(0.75):
            return owner.own
        options = [("mein", "my"), ("unser", "our"), ("dein", "your")]
        return self.pick(options[: 2 if len(owner.clash) > 2 else 3])

    def phrase(
        self, noun: Noun, dets: str, owner: NP = NO_NOUN, share: float = 0.4, many: float = 0.15
    ) -> NP:
        """A noun phrase with one of `dets` ("mein" any possessive, "2" a number, "-" none)."""
        det, words = self.pick(dets.split()), self.adjectives(noun, share)
        if det == "2":
            return noun_phrase(
                noun, "", words, count=self.number(2, 12 if self.chance(0.7) else 99)
            )
        if det == "-":
            return noun_phrase(noun, "", words, plural=not noun.mass)
        det, en = self.possessive(owner) if det == "mein" else (det, "")
        plural = det != "ein" and noun.plural != "-" and self.chance(many)
        return noun_phrase(noun, det, words, plural, en=en)

    def definite(
        self, groups: str, owner: NP = NO_NOUN, share: float = 0.3, many: float = 0.15
    ) -> NP:
        """A phrase with der, dieser or a possessive, which "nicht" can follow."""
        noun = self.noun(groups)
        if noun.group == "kin":
            return self.phrase(noun, "mein", owner, share / 2, many)
        if noun.group == "person":
            dets = "der der mein" if noun.lemma in OWNED_PERSONS else "der"
        else:
            dets = "der mein" if noun.mass else "der der der dies mein"
        return self.phrase(noun, dets, owner, share, many)

    def object(self, groups: str, subject: NP, kein: bool = True) -> NP:
        """A noun phrase that a verb acts on, definite or not."""
        noun, no = self.noun(groups), " kein" if kein else ""
        if noun.group == "kin":
            return self.phrase(noun, "mein", subject, 0.15)
        if noun.group == "person":
            mine = " mein mein" if noun.lemma in OWNED_PERSONS else ""
            return self.phrase(noun, "der der der der ein 2" + mine, subject, 0.25)
        if noun.mass:
            return self.phrase(noun, "der der - -" + no, subject, 0.3)
        return self.phrase(noun, "der der der der ein ein ein mein mein dies 2 -" + no, subject)

    def subject(self, initial: bool = True, again: bool = False) -> NP:
        """Somebody who acts. `initial`: not Sie, nor sie in the plural, which look alike at the
        start of a sentence; `again`: somebody a later pronoun can take up."""
        draw = self.random()
        if draw < 0.4:
            keys = "ich ich du er er sie sie wir ihr" + ("" if initial else " sie5 Sie")
            return PRONOUNS[self.pick(keys.split())]
        if draw < 0.52:
            return self.titled()
        if draw < 0.7 and not again:
            gender, own = self.pick((("m", ("sein", "his")), ("f", ("ihr", "her"))))
            name = self.first_name(gender)
            return NP((name,) * 4, name, own=own)
        subject = self.definite("kin" if draw < 0.85 else "person", share=0.2)
        return subject if subject.again or not again else self.subject(initial, again)

    def other(self) -> NP:
        """Somebody else than ich, to be asked about."""
        while (subject := self.subject(initial=False)).person == 0:
            pass
        return subject

    # Verb phrases

    def with_pronoun(self, verb: Verb, subject: NP, case: str, keys: str) -> VP:
        pronoun = PRONOUNS[self.pick([key for key in keys.split() if key not in subject.clash])]
        return VP(verb, pronoun.obj, pronoun.de(case))

    def with_object(self, verb: Verb, thing: NP, case: str = "acc", place: bool = False) -> VP:
        return VP(verb, thing.obj, "", thing.de(case), "", thing.kein, thing.indefinite, place)

    def transitive(self, subject: NP) -> VP:
        verb, (groups,) = self.rare(VERBS["transitive"], VERB)
        if groups == "person kin" and " " not in verb.en and self.chance(0.35):
            return self.with_pronoun(verb, subject, "acc", "ich du er wir ihr Sie")
        place = verb.inf in PLACED and "vehicle" not in groups
        return self.with_object(verb, self.object(groups, subject), place=place)

    def ditransitive(self, subject: NP) -> VP:
        verb, (groups,) = self.rare(VERBS["ditransitive"], VERB)
        given = self.object(groups, subject)
        if self.chance(0.5):
            to = self.with_pronoun(verb, subject, "dat", "ich du er sie wir ihr sie5 Sie")
        else:
            to = self.with_object(verb, self.definite("person kin", subject), "dat")
        en = f"{to.en} {given.obj}"
        if verb.en.endswith(" to"):
            verb, en = replace(verb, en=verb.en.removesuffix(" to")), f"{given.obj} to {to.en}"
        objects = join(to.objects, given.de("acc"))
        return replace(
            to, verb=verb, en=en, objects=objects, kein=given.kein, indefinite=given.indefinite
        )

    def dative(self, subject: NP) -> VP:
        verb, (groups,) = self.rare(VERBS["dative"], VERB)
        if self.chance(0.4):
            return self.with_pronoun(verb, subject, "dat", "ich du er sie wir ihr sie5 Sie")
        return self.with_object(verb, self.definite(groups, subject), "dat")

    def prepositional(self, subject: NP) -> VP:
        verb, (groups, how) = self.rare(VERBS["prepositional"], VERB)
        *reflexive, preposition, case = how.split()
        thing = self.definite(groups, subject)
        return VP(
            verb, thing.obj, "".join(reflexive), tail=prepositional(preposition, thing.de(case))
        )

    def intransitive(self, subject: NP) -> VP:
        verb, _ = self.rare(VERBS["intransitive"], VERB)
        town = self.town()
        if verb.inf == "um_ziehen":
            return VP(verb, f"to {town[1]}", tail=f"nach {town[0]}")
        if verb.inf == "an_kommen":
            return VP(verb, f"in {town[1]}", tail=f"in {town[0]}")
        return VP(verb, place=verb.inf in PLACED)

    def idiom(self, subject: NP) -> VP:
        verb, (en, de) = self.rare(VERBS["idiom"], VERB)
        return VP(verb, en, tail=de)

    def motion(self, subject: NP) -> VP:
        """gehen and laufen to a place, fliegen and fahren (with what) to a town."""
        draw = self.random()
        if draw < 0.5:
            there = self.place("building place room", 1)
            return VP(self.pick((GO, GO, RUN)), there[1], tail=there[0])
        town = self.town()
        if draw < 0.65:
            return VP(FLY, f"to {town[1]}", tail=f"nach {town[0]}")
        vehicle = self.row(VEHICLES)
        return VP(TRAVEL, f"to {town[1]} by {vehicle[1]}", tail=f"mit {vehicle[0]} nach {town[0]}")

    def stative(self, subject: NP) -> VP:
        """What is said in the present without any adverb."""
        if self.chance(0.15):
            thing = self.definite("animal event", subject)
            afraid = Verb("haben", "-", "gehabt", "be afraid of")
            no = self.chance(0.3)
            tail = f"{'keine ' if no else ''}Angst vor {thing.de('dat')}"
            return VP(afraid, thing.obj, tail=tail, kein=no, indefinite=True)
        verb, (groups,) = self.rare(VERBS["stative"], VERB)
        if verb.inf == "haben":
            return self.with_object(verb, self.phrase(self.noun(groups), "ein ein kein kein 2"))
        if verb.inf == "mögen":
            return self.with_object(verb, self.definite(groups, subject))
        return self.with_object(verb, self.object(groups, subject))

    def fond(self, subject: NP) -> VP:
        """What goes with gern: things in general."""
        draw = self.random()
        if draw < 0.5:
            verb, (groups,) = self.pick([row for row in VERBS["transitive"] if row[0].inf in FOND])
            thing = self.phrase(self.noun(groups.replace("kin", "")), "-", share=0.5)
            return self.with_object(verb, thing)
        if draw < 0.65:
            return VP(self.pick(VERBS["intransitive"][:4] + VERBS["intransitive"][5:7])[0])
        return self.idiom(subject) if draw < 0.8 else self.motion(subject)

    def verb_phrase(self, subject: NP, tense: str) -> VP:
        """A verb phrase of any kind that can stand in this tense."""
        if tense == "gern":
            return self.fond(subject)
        if tense == "state":
            return self.stative(subject)
        kinds = [self.transitive] * 8 + [self.ditransitive, self.dative] * 2
        kinds += (
            [self.prepositional] * 4 + [self.motion] * 3 + [self.intransitive] * 4 + [self.idiom]
        )
        barred = UNPLANNED if tense in MODALS else MOMENTARY if tense == "now" else ()
        while True:
            phrase = self.pick(kinds)(subject)
            if phrase.verb.inf not in barred and not (tense == "perfect" and phrase.indefinite):
                return phrase

    def place(self, groups: str = "locale", way: int = 0) -> Pair:
        """Where something happens, or (`way` 1) where somebody goes."""
        noun = self.noun(groups)
        there = self.phrase(noun, "der der der ein", share=0.3, many=0)
        where, to, en = WHERE.get(noun.head, "in in in").split()
        if way:
            return prepositional(to, there.de("dat" if to == "zu" else "acc")), f"to {there.en}"
        return prepositional(where, there.de("dat")), f"{en} {there.en}"

    def anywhere(self) -> Pair:
        """At a place, in a town or at home."""
        draw = self.random()
        if draw < 0.5:
            return self.place()
        town = self.town()
        return (f"in {town[0]}", f"in {town[1]}") if draw < 0.75 else ("zu Hause", "at home")

    # Clauses

    def clause(
        self, tense: str, subject: NP, time: float = 0.5, neg: float = 0.12, place: float = 0.4
    ) -> Clause:
        """A clause; the shares say how many have a time, a "nicht", a place."""
        if tense == "gone":
            tense = self.pick(("past", "past", "past", "past", *PAST_MODALS))
        if tense == "planned":
            tense = self.pick(("future", "future", "would", "must", "want", "can", "should", "may"))
        phrase = self.verb_phrase(subject, tense)
        hurried = phrase.verb.inf in HURRIED and tense != "perfect" and self.chance(0.2)
        return Clause(
            subject,
            phrase,
            tense,
            "nicht" if not phrase.indefinite and self.chance(neg) else "",
            self.time(tense) if self.chance(time) else NONE,
            NONE,
            self.anywhere() if phrase.place and self.chance(place) else NONE,
            self.row(MANNERS) if hurried else NONE,
        )

    def any_clause(self, initial: bool = False, time: float = 0.5, neg: float = 0.12) -> Clause:
        return self.clause(
            "gone" if self.chance(0.6) else "planned", self.subject(initial), time, neg
        )

    def habit(self, often: bool) -> Clause:
        """The German present that is a simple present in English, with an adverb or a time."""
        c = replace(self.clause("present", self.subject(), time=0, neg=0), manner=NONE)
        if often and not c.vp.kein:
            return replace(c, often=self.row(FREQUENCIES))
        day = self.weekday()
        return replace(
            c, time=(f"am {day[0]}", f"on {day[1]}") if self.chance(0.3) else self.row(HABITS)
        )

    def where_question(self) -> Clause:
        while True:
            c = self.clause("gone", self.subject(initial=False), 0.3, 0, 0)
            if c.vp.place and not c.vp.kein:
                return c

    def when_question(self) -> Clause:
        while True:
            c = self.any_clause(time=0, neg=0)
            if not c.vp.kein:
                return c

    def without_object(self, kind: str, subject: NP, groups: str = "") -> tuple[Clause, list[str]]:
        """A clause whose object is asked for, or taken up by a relative pronoun; and its groups."""
        while True:
            verb, (found, *_) = self.rare(VERBS[kind], VERB)
            wanted = (
                found.split() if not groups else [g for g in found.split() if g in groups.split()]
            )
            if wanted and verb.inf != "folgen":
                tense = (
                    "past" if verb.inf in UNPLANNED or self.chance(0.7) else self.pick(PAST_MODALS)
                )
                time = self.time(tense) if self.chance(0.4) else NONE
                return Clause(subject, VP(verb), tense, time=time), wanted

    # Parts of longer sentences

    def state_of(self, who: NP, past: bool) -> Pair:
        """How somebody is or was, verb last: "er müde war", "er keine Zeit hat"."""
        p, subject, (de, en) = who.person, who.de("nom"), self.row(STATES)
        ist, hat = (WAS_DE[p], HAD_DE[p]) if past else (BE_DE[p], HAVE_DE[p])
        is_, has = (WAS_EN[p], "had") if past else (BE_EN[p], "has" if p == 2 else "have")
        options = (
            (f"{de} {ist}", f"{is_} {en}"),
            (f"sehr {de} {ist}", f"{is_} very {en}"),
            (f"Hunger {hat}", f"{is_} hungry"),
            (f"Durst {hat}", f"{is_} thirsty"),
            (f"keine Zeit {hat}", f"{has} no time"),
            (f"viel Arbeit {hat}", f"{has} a lot of work"),
            (
                f"{'genug' if past else 'kein'} Geld {hat}",
                f"{has} {'enough' if past else 'no'} money",
            ),
            (f"zu Hause {ist}", f"{is_} at home"),
            (f"allein {ist}", f"{is_} alone"),
        )
        de, en = self.pick(options)
        return f"{subject} {de}", f"{who.en} {en}"

    def aside(self, who: NP, past: bool) -> Pair:
        """A subordinate clause, verb last: the weather, how `who` is, or what `who` does."""
        draw, again = self.random(), PRONOUNS[who.again]
        if draw < 0.15:
            return self.row(PAST_WEATHER if past else WEATHER)
        if draw < 0.7:
            return self.state_of(again, past)
        c = self.clause("gone" if past else "present", again, 0.2 if past else 0, 0.2, 0)
        return german(c, "last"), english(c)

    def name_of(self, seen: dict[str, Slot]) -> Pair:
        """A name for the first person in the sentence."""
        who = next(slot for slot in seen.values() if isinstance(slot, NP))
        name = self.first_name("m" if who.again == "er" else "f")
        return name, name

    def aim(self, subject: NP) -> Clause:
        """What somebody wants to do, for an infinitive with zu."""
        while True:
            c = self.clause("would", subject, 0, 0, 0)
            if not c.vp.kein and c.vp.verb not in (GO, RUN, FLY, TRAVEL):
                return c

    def going(self) -> Clause:
        """Somebody went somewhere, for an um ... zu to say what for."""
        subject = self.subject()
        time = self.time("past") if self.chance(0.3) else NONE
        return Clause(subject, self.motion(subject), "past", time=time)

    def year(self) -> Pair:
        """A year between 1810 and 2029, in words or in figures."""
        year = 1810 + self.below(220)
        if self.chance(0.3):
            return str(year), str(year)
        if (year % 100 < 10 and year < 2000) or (not self.unseen and held_out("number", str(year))):
            return self.year()
        return year_words(year)

    def request(self) -> Clause:
        c = self.aim(PRONOUNS["Sie"])
        while (not c.vp.objects and not c.vp.pronoun) or c.vp.pronoun == "sich":
            c = self.aim(PRONOUNS["Sie"])
        return replace(c, tense="present", often=("bitte", ""))

    def who(self) -> NP:
        """The man who ...: nothing in the clause can be taken for its subject."""
        noun = self.noun("person")
        head = noun_phrase(noun, "der", self.adjectives(noun, 0.2))
        c = self.clause("gone", NP((head.de("nom").split()[0],) * 4, "who"), 0.4, 0.1)
        marked = ("den ", "einen ", "meinen ", "deinen ", "unseren ")
        if c.vp.verb.inf in SEE_OR_MEET and c.vp.objects and not c.vp.objects.startswith(marked):
            return self.who()
        return head.with_clause(german(c, "last"), english(c))

    def which(self) -> NP:
        """The book that somebody ...: with a pronoun as subject, so that it has one reading."""
        c, groups = self.without_object("transitive", self.speaker(), THINGS)
        noun = self.noun(self.pick(groups))
        head = noun_phrase(noun, "der", self.adjectives(noun, 0.35))
        return head.with_clause(
            f"{determiner('der', noun.gender, 'acc')} {german(c, 'last')}", f"that {english(c)}"
        )

    def whom(self) -> NP:
        """The man with whom somebody ..., the woman that somebody helped."""
        noun = self.noun("person")
        head = noun_phrase(noun, "der", self.adjectives(noun, 0.35))
        relative = determiner("der", noun.gender, "dat")
        if self.chance(0.5):
            c, _ = self.without_object("dative", self.speaker())
            return head.with_clause(f"{relative} {german(c, 'last')}", f"that {english(c)}")
        verb, _ = self.rare(VERBS["company"], VERB)
        c = Clause(
            self.speaker(), VP(verb), "past", time=self.time("past") if self.chance(0.4) else NONE
        )
        return head.with_clause(f"mit {relative} {german(c, 'last')}", f"with whom {english(c)}")

    def speaker(self) -> NP:
        return PRONOUNS[self.pick(listed("ich ich du er wir ihr"))]

    def owned(self) -> NP:
        """The key of somebody: a genitive after the noun, before it in English."""
        noun, owner = self.noun(THINGS), self.phrase(self.noun("kin"), "mein", share=0, many=0)
        thing = noun_phrase(noun, "der")
        forms = tuple(f"{form} {owner.de('gen')}" for form in thing.forms)
        return NP(forms, f"{owner.en_genitive} {thing.en.removeprefix('the ')}")

    def where(self) -> NP:
        """A place among the furniture, accusative for whither and dative for where."""
        (preposition, en), noun = self.row(SURFACES), NOUNS[self.pick(FURNITURE_ON.split())]
        spot = self.phrase(noun, "der der dies", share=0.3, many=0)
        return NP(tuple(prepositional(preposition, form) for form in spot.forms), f"{en} {spot.en}")

    def two_objects(self) -> Clause:
        """nicht A, sondern B; weder A noch B; A und B."""
        c, groups = self.without_object(
            "transitive", self.subject(), THINGS + " fruit cake dish salad"
        )
        group, draw = self.pick(groups), self.random()
        one, two = self.definite(group, c.subject), self.definite(group, c.subject)
        if one.en.split()[-1] == two.en.split()[-1]:
            return self.two_objects()
        before, between, en, en_between = (
            ("nicht ", ", sondern", "", "but") if draw < 0.4
            else ("weder ", " noch", "neither ", "nor") if draw < 0.6 else ("", " und", "", "and")
        )  # fmt: skip
        objects = f"{before}{one.de('acc')}{between} {two.de('acc')}"
        phrase = VP(
            c.vp.verb, f"{en}{one.en} {en_between} {two.en}", objects=objects, kein=draw < 0.4
        )
        return replace(c, vp=phrase)

    def object_first(self) -> Pair:
        """A masculine accusative or a dative before the verb, known as such by its article."""
        kind = self.pick(("transitive", "dative"))
        c, groups = self.without_object(
            kind, self.subject(initial=False), "" if kind == "dative" else THINGS
        )
        noun = self.noun(self.pick([group for group in groups if group != "kin"]))
        if kind == "transitive" and noun.gender != "m":
            return self.object_first()
        thing = noun_phrase(noun, "der", self.adjectives(noun, 0.35))
        de = f"{thing.de('dat' if kind == 'dative' else 'acc')} {german(c, 'first')}"
        return de, english(replace(c, vp=VP(c.vp.verb, thing.en)))

    def object_question(self) -> Pair:
        """was, wen, wem, welches Buch, wie viele Bücher."""
        subject, draw = self.subject(initial=False), self.random()
        if draw < 0.25:
            c, _ = self.without_object("dative", subject)
            de, en = "wem", "who"
        elif draw < 0.4:
            c, _ = self.without_object("transitive", subject, "kin")
            de, en = "wen", "who"
        else:
            c, groups = self.without_object(
                "transitive", subject, THINGS + " fruit cake dish salad"
            )
            noun = self.noun(self.pick(groups))
            which = noun_phrase(noun, "welch", self.adjectives(noun, 0.2))
            many = noun_phrase(noun, plural=True)
            de, en = self.pick((
                ("was", "what"), (which.de("acc"), which.en), (f"wie viele {many.de('acc')}", f"how many {many.en}"),
            ))  # fmt: skip
        if c.vp.verb.inf in SEE_OR_MEET and de == "was":
            return self.object_question()
        return f"{de} {german(c, 'first')}", f"{en} {english(c, 'q')}"

    def predicate(self, question: bool = False) -> Pair:
        """ist or war with an adjective: heiß, zu heiß, nicht heiß."""
        group = self.pick([group for group in ADJECTIVES_OF for _ in POOLS[group][0]])
        thing, word = self.definite(group, share=0), self.rare(ADJECTIVES_OF[group].split(), str)
        grades = [NONE, ("nicht", "not")]
        if word not in COLORS and word != "kaputt":
            grades += [("sehr", "very"), ("nicht sehr", "not very")]
        if word in TOO_MUCH:
            grades += [("zu", "too")]
        how, how_en = self.pick(grades)
        p, past = thing.person, self.chance(0.4)
        ist, is_ = (WAS_DE[p], WAS_EN[p]) if past else (BE_DE[p], BE_EN[p])
        order, order_en = [thing.de("nom"), ist], [thing.en, is_]
        if question:
            order, order_en = order[::-1], order_en[::-1]
        return join(*order, how, word), join(*order_en, how_en, ADJECTIVES[word][0])

    def comparison(self) -> Pair:
        """größer als, so groß wie."""
        group = self.pick(
            [
                group
                for group in ADJECTIVES_OF
                if group not in listed("hot drink food thing talk cake")
            ]
        )
        a, b = (self.definite(group, share=0, many=0) for _ in "ab")
        words = [word for word in ADJECTIVES_OF[group].split() if ADJECTIVES[word][1] != "-"]
        word = self.rare(words, str)
        en, more, more_en = ADJECTIVES[word]
        if a.en.split()[-1] == b.en.split()[-1] or 5 in (a.person, b.person):
            return self.comparison()
        how, how_en = self.pick(((f"{more} als", f"{more_en} than"), (f"so {word} wie", f"as {en} as"),
                                 (f"nicht so {word} wie", f"not as {en} as")))  # fmt: skip
        return f"{a.de('nom')} ist {how} {b.de('nom')}", f"{a.en} is {how_en} {b.en}"

    def profession(self) -> Pair:
        """Who is, was or would like to become what: no article in German."""
        gender, de, en = self.pick(table(PROFESSIONS))
        kin = [noun for noun in NOUNS.values() if noun.group == "kin" and noun.gender == gender]
        who, en = self.phrase(self.pick(kin), "mein", share=0.2, many=0), with_article(f"a {en}")
        ist, is_ = self.pick((("ist", "is"), ("war", "was"), ("möchte", "would like to become")))
        return join(
            who.de("nom"), ist, de, "werden" if ist == "möchte" else ""
        ), f"{who.en} {is_} {en}"

    # Templates

    def slot(self, kind: str, seen: dict[str, Slot]) -> Slot:
        """The filling of a slot; `seen` holds those to its left, which some take up."""
        if kind in SLOTS:
            return SLOTS[kind](self, seen)
        det, _, group = kind.rpartition("_")
        if det == "n":
            noun = self.noun(group)
            return noun_phrase(noun, "", self.adjectives(noun, 0.3), count=2 + self.below(11))
        if det in ("der", "just", "one"):
            dets, share = ("ein" if det == "one" else "der der dies"), 0.4 if det == "der" else 0
            return self.phrase(self.noun(group), dets, share=share, many=0)
        if det in ("a", "no", "many", "mass"):
            dets = {"a": "ein", "no": "kein", "many": "-", "mass": "-"}[det]
            thing = self.phrase(self.noun(group), dets, many=0)
            return (
                replace(thing, en=re.sub("^(an?|any) ", "no ", thing.en)) if det == "no" else thing
            )
        if det == "the":  # in the plural
            return self.phrase(self.noun(group), "der der dies", many=1)
        while (thing := self.definite(group, many=0)).person == 5:
            pass  # Eltern
        return thing

    def compose(self) -> Pair:
        """A sentence from any template; nobody is called both du and Sie in it."""
        while True:
            de, en = self.fill(self.pick(WEIGHTED_TEMPLATES))
            forms = (
                r"\b[Dd](u|ich|ir|ein\w*)\b",
                r"(?<= )(Sie|Ihnen|Ihr\w*)\b",
                r"\b[Ee](uch|uer|ure\w*)\b",
            )
            if sum(bool(re.search(form, de)) for form in forms) < 2:
                return de, en

    def fill(self, template: str) -> Pair:
        """Both sides of a template, a slot of the same name filled alike on both."""
        seen: dict[str, Slot] = {}

        def put(match: re.Match[str], side: int) -> str:
            name, _, form = match.group(1).partition(".")
            if name not in seen:
                while (value := self.slot(name.rstrip("0123456789"), seen)) in seen.values():
                    pass
                seen[name] = value
            return written(seen[name], form, side)

        de, en = (
            re.sub(r"{([^}]*)}", partial(put, side=side), text)
            for side, text in enumerate(template.split(" = "))
        )
        for pair, short in CONTRACTIONS.items():
            de = de.replace(f"~{pair} ", f"{short} ")
        return capitalised(de.replace("~", "")), capitalised(en)


def capitalised(text: str) -> str:
    return text[0].upper() + text[1:]


Slot = NP | Pair | Clause


def written(value: Slot, form: str, side: int) -> str:
    """One side of a slot: a case of a phrase, a word order of a clause."""
    if isinstance(value, tuple):
        return value[side]
    if isinstance(value, NP):
        if side:
            again = "them" if value.person == 5 else "it"
            return {"s": value.en_genitive, "it": again, "they": "they"}.get(form, value.en)
        if form in ("er", "ihn"):
            pronoun = {"er": ("er", "ihn"), "sie": ("sie", "sie"), "sie5": ("sie", "sie")}
            return pronoun.get(value.again, ("es", "es"))[form == "ihn"]
        return value.de(form)
    phrase = value.vp
    if form in ("zu", "bare"):
        if side == 0:
            return join(middle(value), phrase.verb.with_zu)
        return join(phrase.verb.en, phrase.en, value.manner[1], value.time[1])
    if side:
        return english(value, form)
    return german(value, form)


def topic(seen: dict[str, Slot]) -> NP:
    """The subject of the clause a sentence began with, "ich" where it began without one."""
    return next(
        (slot.subject for slot in seen.values() if isinstance(slot, Clause)), PRONOUNS["ich"]
    )


def taken_up(seen: dict[str, Slot]) -> NP:
    """The pronoun for that subject."""
    return PRONOUNS[topic(seen).again]


SLOTS: dict[str, Callable[[Composer, dict[str, Slot]], Slot]] = {
    # clauses: of any kind, with special adverbials, and those that belong together
    "any": lambda me, seen: me.any_clause(initial=True),
    "inner": lambda me, seen: me.any_clause(),
    "gone": lambda me, seen: me.clause("gone", me.subject(initial=False), 0.4),
    "hoped": lambda me, seen: me.clause("planned", me.subject(initial=False), 0.4),
    "fronted": lambda me, seen: me.any_clause(time=1, neg=0.1),
    "often": lambda me, seen: me.habit(often=True),
    "habit": lambda me, seen: me.habit(often=False),
    "now": lambda me, seen: replace(me.clause("now", me.subject(), 0, 0), time=("gerade", "right now")),
    "jetzt": lambda me, seen: replace(me.clause("now", me.subject(), 0, 0), time=("jetzt", "now")),
    "fond": lambda me, seen: replace(me.clause("gern", me.subject(), 0, 0), often=("gern", "")),
    "already": lambda me, seen: replace(me.clause("perfect", me.subject(), 0, 0, 0), neg="schon"),
    "not_yet": lambda me, seen: replace(me.clause("perfect", me.subject(), 0, 0, 0), neg="noch nicht"),
    "state": lambda me, seen: me.clause("state", me.subject(), 0, 0.2, 0),
    "has": lambda me, seen: me.clause("state", me.other(), 0, 0.1, 0),
    "where": lambda me, seen: me.where_question(),
    "when": lambda me, seen: me.when_question(),
    "wer": lambda me, seen: me.clause("gone", WHO, 0.4, 0.1),
    "main": lambda me, seen: me.clause("gone", me.subject(again=True), 0.4, 0.25),
    "then": lambda me, seen: me.clause("gone", taken_up(seen), 0, 0.25),
    "why": lambda me, seen: me.aside(topic(seen), past=True),
    "plan": lambda me, seen: me.clause("planned", PRONOUNS[me.subject(False, True).again], 0.2, 0.2),
    "if": lambda me, seen: me.aside(PRONOUNS[me.subject(False, True).again], past=False),
    "go": lambda me, seen: me.going(),
    "tried": lambda me, seen: Clause(me.subject(), VP(me.rare(VERBS["matrix"], VERB)[0]), "past"),
    "aim": lambda me, seen: me.aim(topic(seen)),
    "request": lambda me, seen: me.request(),
    "ich": lambda me, seen: me.clause("gone", PRONOUNS["ich"], 0, 0.2),
    "er": lambda me, seen: me.clause("gone", PRONOUNS["er"], 0, 0.2),
    "sie": lambda me, seen: me.clause("gone", PRONOUNS["sie"], 0, 0.2),
    "wir": lambda me, seen: me.clause("gone", PRONOUNS["wir"], 0, 0.2),
    "two": lambda me, seen: me.two_objects(),
    "front": lambda me, seen: me.object_first(),
    "asked": lambda me, seen: me.object_question(),
    # phrases
    "who": lambda me, seen: me.who(),
    "which": lambda me, seen: me.which(),
    "whom": lambda me, seen: me.whom(),
    "owned": lambda me, seen: me.owned(),
    "pred": lambda me, seen: me.predicate(),
    "predq": lambda me, seen: me.predicate(question=True),
    "compared": lambda me, seen: me.comparison(),
    "job": lambda me, seen: me.profession(),
    "titled": lambda me, seen: me.titled(),
    "spot": lambda me, seen: me.where(),
    "old": lambda me, seen: me.row("alt old; neu new; groß big; klein small; teuer expensive; schön beautiful"),
    "too": lambda me, seen: me.row("groß big; klein small; teuer expensive; dunkel dark; laut noisy"),
    "adj": lambda me, seen: me.row("wichtig important; schwierig difficult; einfach simple"),
    "to": lambda me, seen: me.place("building place room", 1),
    "in": lambda me, seen: me.anywhere(),
    "at": lambda me, seen: me.place("building"),
    # names, numbers, times
    "name": lambda me, seen: (me.first_name(),) * 2,
    "town": lambda me, seen: me.town(),
    "few": lambda me, seen: me.counted(2, 12),
    "adult": lambda me, seen: me.counted(20, 70),
    "village": lambda me, seen: (me.name("town"),) * 2,
    "age": lambda me, seen: me.counted(3, 99),
    "hundreds": lambda me, seen: me.counted(20, 999),
    "number": lambda me, seen: me.counted(20, 999_999),
    "many": lambda me, seen: me.counted(100, 999_999),
    "high": lambda me, seen: me.counted(20_000, 999_999),
    "his": lambda me, seen: me.name_of(seen),
    "sum": lambda me, seen: me.sum(),
    "year": lambda me, seen: me.year(),
    "price": lambda me, seen: me.price(),
    "clock": lambda me, seen: me.clock(),
    "digital": lambda me, seen: (f"{me.below(24)}:{10 + me.below(50)}",) * 2,
    "date": lambda me, seen: me.date(),
    "weekday": lambda me, seen: me.weekday(),
    "day": lambda me, seen: me.day(),
    "past": lambda me, seen: me.time("past"),
    "span": lambda me, seen: me.span("Monaten months; Jahren years; Wochen weeks"),
}  # fmt: skip

WHO = NP(("wer", "wen", "wem", ""), "who")
# weight German = English. "~" marks a preposition that runs together with the article after it.
TEMPLATES = """
    30 {any}. = {any}.
    30 {fronted.time}. = {fronted.time}.
    12 {often}. = {often}.
    10 {habit}. = {habit}.
    12 {habit.time}. = {habit.time}.
    4 {now}. = {now}.
    4 {jetzt.time}. = {jetzt.time}.
    6 {fond}. = {fond}.
    2 {fond.first}? = {fond.q}?
    4 {already}. = {already}.
    4 {not_yet}. = {not_yet}.
    2 {already.first}? = {already.q}?
    14 {state}. = {state}.
    4 {has.first}? = {has.q}?
    10 {inner.first}? = {inner.q}?
    4 Warum {inner.first}? = Why {inner.q}?
    2 Wo {where.first}? = Where {where.q}?
    4 Wann {when.first}? = When {when.q}?
    4 {wer}? = {wer}?
    10 {asked}? = {asked}?
    10 {main}, weil {why}. = {main} because {why}.
    6 {main}, obwohl {why}. = {main} although {why}.
    2 {main}, denn {gone}. = {main} because {gone}.
    8 {main}, aber {then}. = {main}, but {then}.
    6 {main}, und dann {then.first}. = {main}, and then {then}.
    6 Wenn {if}, {plan.first}. = If {if}, {plan}.
    2 Als ich in {town} war, {ich.first}. = When I was in {town}, {ich}.
    2 Als er in {town} war, {er.first}. = When he was in {town}, {er}.
    2 Als sie {age} Jahre alt war, {sie.first}. = When she was {age} years old, {sie}.
    2 Als wir {to} gegangen sind, {wir.first}. = When we went {to}, {wir}.
    4 Ich glaube, dass {gone.last}. = I believe that {gone}.
    4 Ich hoffe, dass {hoped.last}. = I hope that {hoped}.
    4 {name} hat gesagt, dass {gone.last}. = {name} said that {gone}.
    2 Es ist schade, dass {gone.last}. = It is a pity that {gone}.
    2 Ich habe gehört, dass {hoped.last}. = I heard that {hoped}.
    4 Ich weiß nicht, ob {inner.last}. = I do not know whether {inner}.
    2 Weißt du, warum {gone.last}? = Do you know why {gone}?
    2 Können Sie mir sagen, wann {when.last}? = Can you tell me when {when}?
    2 {name} hat gefragt, ob {gone.last}. = {name} asked whether {gone}.
    8 {go}, um {aim.zu}. = {go} to {aim.bare}.
    6 {tried}, {aim.zu}. = {tried} to {aim.bare}.
    2 Es ist {adj} für mich, {aim.zu}. = It is {adj} for me to {aim.bare}.
    2 Ich habe keine Zeit, {aim.zu}. = I have no time to {aim.bare}.
    4 {request.first}! = Please {request.bare}!
    8 {two}. = {two}.
    8 {front}. = {front}.
    4 {who.nom}, heißt {his}. = {who} is called {his}.
    2 {who.nom}, kommt aus {town}. = {who} comes from {town}.
    4 Ich kenne {who.acc}. = I know {who}.
    2 {which.nom}, gefällt mir sehr. = I like {which} very much.
    4 {which.nom}, hat {price} gekostet. = {which} cost {price}.
    2 {which.nom}, gehört {kin.dat}. = {which} belongs to {kin}.
    2 Das ist {which.nom}. = This is {which}.
    2 Wo ist {which.nom}? = Where is {which}?
    4 {whom.nom}, wohnt in {town}. = {whom} lives in {town}.
    2 {whom.nom}, heißt {his}. = {whom} is called {his}.
    2 Das Haus, in dem {titled.nom} wohnt, ist sehr {old}. = The house in which {titled} lives is very {old}.
    2 Die Wohnung, in der {name} wohnt, ist zu {too}. = The apartment in which {name} lives is too {too}.
    2 Der Ort, aus dem {name} kommt, heißt {town}. = The place from which {name} comes is called {town}.
    # what is, what there is, whose it is, who likes it
    8 {pred}. = {pred}.
    2 {predq}? = {predq}?
    6 {compared}. = {compared}.
    3 {job}. = {job}.
    2 In {town} gibt es {a_building.acc}. = There is {a_building} in {town}.
    1 In {town} gibt es {no_building.acc}. = There is {no_building} in {town}.
    2 In {town} gibt es {n_building.acc}. = There are {n_building} in {town}.
    18 Wie komme ich {to}? = How do I get {to}?
    2 In {town} gibt es {a_place.acc}. = There is {a_place} in {town}.
    24 {kin.nom} war {past} {in}. = {kin} was {in} {past}.
    8 {name} hat {in} auf {person.acc} gewartet. = {name} waited for {person} {in}.
    17 {titled.nom} arbeitet {at}. = {titled} works {at}.
    12 Ich freue mich auf {der_awaited.acc}. = I look forward to {der_awaited}.
    6 Nach {der_held.dat} sind wir {to} gegangen. = After {der_held} we went {to}.
    3 Vor {der_held.dat} hat {name} {in} geschlafen. = Before {der_held} {name} slept {in}.
    6 {name} möchte {mass_drink.acc} oder {mass_hot.acc} trinken. =
        {name} would like to drink {mass_drink} or {mass_hot}.
    4 Trinken Sie {mass_hot.acc} mit Honig? = Do you drink {mass_hot} with honey?
    8 {place.nom} gefällt {person.dat}. = {person} likes {place}.
    15 Können Sie bitte {der_opening.acc} zumachen? = Can you please close {der_opening}?
    8 {kin.nom} muss {der_opening.acc} reparieren. = {kin} has to repair {der_opening}.
    22 {der_vehicle.nom} ist heute zu spät gekommen. = {der_vehicle} came late today.
    3 {name} hat lange auf {der_vehicle.acc} gewartet. = {name} waited for {der_vehicle} for a long time.
    15 {kin.nom} findet {der_room.acc} schön. = {kin} thinks {der_room} is beautiful.
    1 Gibt es in {town} {a_place.acc}? = Is there {a_place} in {town}?
    1 In dieser Stadt gibt es {few} {many_sight.acc}. = There are {few} {many_sight} in this city.
    2 {der_thing.nom} gehört {kin.dat}. = {der_thing} belongs to {kin}.
    1 {der_clothes.nom} gehört mir nicht. = {der_clothes} does not belong to me.
    1 Wem gehört {der_thing.nom}? = Who does {der_thing} belong to?
    1 {the_clothes.nom} gehören {person.dat}. = {the_clothes} belong to {person}.
    2 {thing.nom} gefällt {person.dat}. = {person} likes {thing}.
    13 {kin.dat} gefällt {furniture.nom}. = {kin} likes {furniture}.
    1 {the_clothes.nom} gefallen {kin.dat}. = {kin} likes {the_clothes}.
    1 Mir gefällt {room.nom}. = I like {room}.
    1 Uns gefallen {the_sight.nom}. = We like {the_sight}.
    1 {event.nom} hat {titled.dat} nicht gefallen. = {titled} did not like {event}.
    1 Hat dir {event.nom} gefallen? = Did you like {event}?
    2 {owned.nom} ist {old}. = {owned} is {old}.
    2 Ich habe {owned.acc} gefunden. = I found {owned}.
    1 Wo ist {owned.nom}? = Where is {owned}?
    1 Das ist {owned.nom}. = This is {owned}.
    1 Hast du {owned.acc} gesehen? = Did you see {owned}?
    # taken up by a pronoun: er, sie or es is it
    2 Ich habe {thing.acc} gesucht, aber ich habe {thing.ihn} nicht gefunden. =
        I looked for {thing}, but I did not find {thing.it}.
    2 {just_clothes.nom} ist schön, aber {just_clothes.er} ist zu teuer. =
        {just_clothes} is beautiful, but {just_clothes.it} is too expensive.
    1 {just_device.nom} ist neu, aber {just_device.er} ist schon kaputt. =
        {just_device} is new, but {just_device.it} is already broken.
    1 {name} hat {one_furniture.acc} gekauft, weil {one_furniture.er} billig war. =
        {name} bought {one_furniture} because {one_furniture.it} was cheap.
    1 Wo ist {reading.nom}? Ich kann {reading.ihn} nicht finden. = Where is {reading}? I cannot find {reading.it}.
    1 {the_thing.nom} waren billig, aber {the_thing.er} sind schwer. =
        {the_thing} were cheap, but {the_thing.they} are heavy.
    # where things are and where they are put
    2 {lying.nom} liegt {spot.dat}. = {lying} is lying {spot}.
    2 {standing.nom} steht {spot.dat}. = {standing} is standing {spot}.
    1 {hanging.nom} hängt neben der Tür. = {hanging} is hanging next to the door.
    1 {animal.nom} schläft {spot.dat}. = {animal} is sleeping {spot}.
    1 Liegt {lying.nom} {spot.dat}? = Is {lying} lying {spot}?
    2 {kin.nom} hat {lying.acc} {spot.acc} gelegt. = {kin} put {lying} {spot}.
    2 {name} hat {standing.acc} {spot.acc} gestellt. = {name} put {standing} {spot}.
    1 Stellen Sie {der_standing.acc} bitte {spot.acc}! = Please put {der_standing} {spot}!
    1 Ich habe {hanging.acc} neben die Tür gehängt. = I hung {hanging} next to the door.
    # passive
    2 {device.nom} wurde {past} repariert. = {device} was repaired {past}.
    1 {the_room.nom} wurden {past} geputzt. = {the_room} were cleaned {past}.
    1 {thing.nom} wurde ~von {person.dat} gefunden. = {thing} was found by {person}.
    3 {der_built.nom} wurde im Jahr {year} gebaut. = {der_built} was built in {year}.
    1 {sight.nom} wird nächstes Jahr repariert. = {sight} will be repaired next year.
    # names
    2 Ich heiße {name} und komme aus {town}. = My name is {name} and I come from {town}.
    2 {kin.nom} heißt {his}. = {kin.s} name is {his}.
    1 Wie heißt {kin.nom}? = What is {kin.s} name?
    1 Das ist {titled.nom} aus {town}. = This is {titled} from {town}.
    1 Guten Morgen, {titled.nom}! = Good morning, {titled}!
    1 Guten Abend, {titled.nom}! = Good evening, {titled}!
    1 Auf Wiedersehen, {titled.nom}! = Goodbye, {titled}!
    2 {name} wohnt in {town}. = {name} lives in {town}.
    1 Woher kommt {name}? = Where does {name} come from?
    1 Wo wohnt {titled.nom}? = Where does {titled} live?
    2 {name} und {name2} kommen aus {town}. = {name} and {name2} come from {town}.
    1 {titled.nom} kennt {titled2.acc} nicht. = {titled} does not know {titled2}.
    2 {name} wohnt seit {span} in {town}. = {name} has lived in {town} for {span}.
    1 Ich kenne {titled.acc} seit {span}. = I have known {titled} for {span}.
    1 Seit {span} arbeitet {kin.nom} in {town}. = {kin} has worked in {town} for {span}.
    1 {name} und {titled.nom} haben sich in {town} getroffen. = {name} and {titled} met in {town}.
    1 Wer wohnt in {town}, {name} oder {name2}? = Who lives in {town}, {name} or {name2}?
    # numbers
    8 {village} hat {many} Einwohner. = {village} has {many} inhabitants.
    6 {reading.nom} hat {hundreds} Seiten. = {reading} has {hundreds} pages.
    6 Die richtige Zahl ist {number}. = The correct number is {number}.
    4 Die Nummer ist nicht {number}, sondern {number2}. = The number is not {number} but {number2}.
    8 {sum}. = {sum}.
    6 Von {town} nach {town2} sind es {hundreds} Kilometer. = It is {hundreds} kilometers from {town} to {town2}.
    4 {der_bridge.nom} ist {hundreds} Meter lang. = {der_bridge} is {hundreds} meters long.
    4 {der_tower.nom} ist {hundreds} Meter hoch. = {der_tower} is {hundreds} meters high.
    4 {kin.nom} ist {adult} Jahre alt. = {kin} is {adult} years old.
    2 {name} wird am {date.dat} {age} Jahre alt. = {name} will be {age} years old on {date}.
    4 In der Bibliothek gibt es {many} Bücher. = There are {many} books in the library.
    4 Die Fabrik hat letztes Jahr {many} {many_device.acc} verkauft. =
        The factory sold {many} {many_device} last year.
    4 {kin.nom} hat {many} Euro gespart. = {kin} saved {many} euros.
    4 {der_sold.nom} kostet {high} Euro. = {der_sold} costs {high} euros.
    2 {titled.nom} wohnt in Zimmer {hundreds}. = {titled} lives in room {hundreds}.
    2 {name} wurde im Jahr {year} geboren. = {name} was born in {year}.
    # prices, quantities
    3 {thing.nom} kostet {price}. = {thing} costs {price}.
    5 {the_fruit.nom} kosten {price}. = {the_fruit} cost {price}.
    1 Wie viel kostet {furniture.nom}? = How much does {furniture} cost?
    2 Ich habe {price} für {der_clothes.acc} bezahlt. = I paid {price} for {der_clothes}.
    1 Das macht zusammen {price}. = That is {price} altogether.
    2 {kin.nom} hat {few} Kilo {many_fruit.acc} gekauft. = {kin} bought {few} kilos of {many_fruit}.
    4 Wir haben {few} Flaschen {mass_drink.acc} bestellt. = We ordered {few} bottles of {mass_drink}.
    8 {kin.nom} macht jeden Sonntag {one_salad.acc}. = {kin} makes {one_salad} every Sunday.
    6 {kin.nom} kocht jeden Samstag {one_dish.acc}. = {kin} cooks {one_dish} every Saturday.
    4 {name} und {name2} teilen sich {one_dish.acc}. = {name} and {name2} share {one_dish}.
    2 Ich möchte eine Tasse {mass_hot.acc}. = I would like a cup of {mass_hot}.
    2 {kin.nom} trinkt jeden Morgen {mass_hot.acc}. = {kin} drinks {mass_hot} every morning.
    10 Wir haben {no_food.acc} mehr. = We have {no_food} left.
    5 Möchten Sie {mass_food.acc} oder {mass_fruit.acc}? = Would you like {mass_food} or {mass_fruit}?
    6 {name} isst gern {mass_food.acc} mit {mass_food2.dat}. = {name} likes to eat {mass_food} with {mass_food2}.
    1 Ein Glas {mass_drink.nom} kostet {price}. = A glass of {mass_drink} costs {price}.
    # times and dates
    2 Es ist {clock}. = It is {clock}.
    3 {der_held.nom} fängt um {clock} an. = {der_held} begins at {clock}.
    1 Ich weiß nicht, wann {der_held.nom} anfängt. = I do not know when {der_held} begins.
    2 Der Zug nach {town} fährt um {digital} Uhr ab. = The train to {town} leaves at {digital}.
    2 Um {clock} kommt der Bus aus {town} an. = At {clock} the bus from {town} arrives.
    1 Um wie viel Uhr fährt der Zug nach {town} ab? = What time does the train to {town} leave?
    2 {kin.nom} steht jeden Tag um {clock} auf. = {kin} gets up at {clock} every day.
    1 {der_public.nom} ist bis {clock} geöffnet. = {der_public} is open until {clock}.
    2 {kin.nom} hat am {date.dat} Geburtstag. = {kin.s} birthday is on {date}.
    2 Heute ist {weekday}, der {date.nom}. = Today is {weekday}, {date}.
    2 {der_held.nom} findet {day} statt. = {der_held} takes place {day}.
    1 Der Kurs beginnt am {weekday}, dem {date.dat}. = The course begins on {weekday}, {date}.
    # weather
    1 Morgen wird es in {town} regnen. = Tomorrow it will rain in {town}.
    1 Gestern hat es in {town} geschneit. = Yesterday it snowed in {town}.
    1 Im Sommer ist es in {town} sehr warm. = In the summer it is very warm in {town}.
"""
TEMPLATE_LINES = re.findall(r"^ +(\d+) (.*)$", TEMPLATES.replace("=\n        ", "= "), re.M)
WEIGHTED_TEMPLATES = [template for weight, template in TEMPLATE_LINES for _ in range(int(weight))]


# --- Splits ----------------------------------------------------------------------------------------
def make_splits(sizes: dict[str, int] | None = None) -> dict[str, list[Pair]]:
    """Test and valid first, with held-out items; then training, without them and without repeats."""
    translations: dict[str, str] = {}
    splits: dict[str, list[Pair]] = {}
    for seed, (split, size) in enumerate((sizes or SIZES).items(), start=1):
        composer, pairs = Composer(seed, unseen=split != "train"), []
        while len(pairs) < size:
            de, en = composer.compose()
            if de not in translations:
                translations[de] = en
                pairs.append((de, en))
            elif translations[de] != en:
                raise ValueError(f"two translations of {de!r}: {translations[de]!r} and {en!r}")
        splits[split] = pairs
    return splits


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the demonstration corpus.")
    parser.add_argument("--out", type=Path, default=Path("data/demo"), help="folder to write to")
    folder = parser.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)
    for split, pairs in make_splits().items():
        for side, language in enumerate(("de", "en")):
            text = "".join(pair[side] + "\n" for pair in pairs)
            (folder / f"{split}.{language}").write_bytes(text.encode())


if __name__ == "__main__":
    main()
