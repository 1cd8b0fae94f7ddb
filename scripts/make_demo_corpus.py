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
import random
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
Pair = tuple[str, str]
SIZES = {"test": 500, "valid": 500, "train": 20_000}
UNSEEN_SHARE = 0.3  # of the choices made for valid and test, where there is something held out


# --- Lexicon: nouns, by what can be said of them ---------------------------------------------------
# gender (m, f, n; w = masculine with weak endings; p = plural only), singular, plural, English
# singular, English plural; "-" = no plural; "_" = a space.
NOUN_TABLE = {
    "person": """
        m Mann Männer man men; f Frau Frauen woman women; n Kind Kinder child children
        w Junge Jungen boy boys; n Mädchen Mädchen girl girls; m Gast Gäste guest guests
        m Lehrer Lehrer teacher teachers; f Lehrerin Lehrerinnen teacher teachers
        m Arzt Ärzte doctor doctors; f Ärztin Ärztinnen doctor doctors
        w Nachbar Nachbarn neighbor neighbors; f Nachbarin Nachbarinnen neighbor neighbors
        w Kollege Kollegen colleague colleagues; f Kollegin Kolleginnen colleague colleagues
        w Student Studenten student students; f Studentin Studentinnen student students
        w Polizist Polizisten police_officer police_officers; m Kellner Kellner waiter waiters
        m Bäcker Bäcker baker bakers; w Bauer Bauern farmer farmers
        f Künstlerin Künstlerinnen artist artists; w Tourist Touristen tourist tourists
        m Freund Freunde friend friends; f Chefin Chefinnen boss bosses""",
    "kin": """
        m Vater - father -; f Mutter - mother -; m Bruder Brüder brother brothers
        f Schwester Schwestern sister sisters; m Onkel - uncle -; f Tante Tanten aunt aunts
        m Sohn Söhne son sons; f Tochter Töchter daughter daughters; m Großvater - grandfather -
        f Großmutter - grandmother -; m Cousin Cousins cousin cousins
        p Eltern Eltern parents parents; p Großeltern Großeltern grandparents grandparents""",
    "animal": """
        m Hund Hunde dog dogs; f Katze Katzen cat cats; m Vogel Vögel bird birds
        n Pferd Pferde horse horses; f Kuh Kühe cow cows; f Ente Enten duck ducks""",
    "thing": """
        m Schlüssel Schlüssel key keys; m Koffer Koffer suitcase suitcases; m Ball Bälle ball balls
        m Regenschirm Regenschirme umbrella umbrellas; m Ring Ringe ring rings
        f Tasche Taschen bag bags; f Uhr Uhren clock clocks; f Gitarre Gitarren guitar guitars
        f Flasche Flaschen bottle bottles; f Tasse Tassen cup cups; n Messer Messer knife knives
        f Taschenlampe Taschenlampen flashlight flashlights; f Kamera Kameras camera cameras
        n Fahrrad Fahrräder bicycle bicycles; n Bild Bilder picture pictures
        n Geschenk Geschenke gift gifts; n Paket Pakete package packages
        n Handtuch Handtücher towel towels""",
    "clothes": """
        m Hut Hüte hat hats; m Mantel Mäntel coat coats; m Pullover Pullover sweater sweaters
        m Handschuh Handschuhe glove gloves; m Schuh Schuhe shoe shoes; f Jacke Jacken jacket jackets
        f Mütze Mützen cap caps; f Bluse Blusen blouse blouses; n Hemd Hemden shirt shirts
        n Kleid Kleider dress dresses; m Regenmantel Regenmäntel raincoat raincoats""",
    "reading": """
        m Brief Briefe letter letters; f Zeitung Zeitungen newspaper newspapers
        f Geschichte Geschichten story stories; n Buch Bücher book books
        n Wörterbuch Wörterbücher dictionary dictionaries; n Heft Hefte notebook notebooks""",
    "device": """
        m Computer Computer computer computers; m Fernseher Fernseher television televisions
        m Staubsauger Staubsauger vacuum_cleaner vacuum_cleaners; f Lampe Lampen lamp lamps
        n Radio Radios radio radios; f Waschmaschine Waschmaschinen washing_machine washing_machines
        m Kühlschrank Kühlschränke refrigerator refrigerators""",
    "furniture": """
        m Tisch Tische table tables; m Stuhl Stühle chair chairs; m Schrank Schränke cabinet cabinets
        m Schreibtisch Schreibtische desk desks; m Spiegel Spiegel mirror mirrors
        m Teppich Teppiche carpet carpets; n Bett Betten bed beds; n Sofa Sofas sofa sofas
        n Regal Regale shelf shelves""",
    "opening": """
        f Tür Türen door doors; n Fenster Fenster window windows
        f Haustür Haustüren front_door front_doors; f Schublade Schubladen drawer drawers
        m Briefkasten Briefkästen mailbox mailboxes""",
    "fruit": """
        m Apfel Äpfel apple apples; f Birne Birnen pear pears; f Banane Bananen banana bananas
        f Orange Orangen orange oranges; f Tomate Tomaten tomato tomatoes; n Ei Eier egg eggs
        f Kartoffel Kartoffeln potato potatoes; n Brötchen Brötchen roll rolls
        f Erdbeere Erdbeeren strawberry strawberries""",
    "cake": """
        m Kuchen Kuchen cake cakes; m Apfelkuchen Apfelkuchen apple_pie apple_pies
        m Käsekuchen Käsekuchen cheesecake cheesecakes""",
    "dish": """
        f Suppe Suppen soup soups; m Salat Salate salad salads; m Eintopf Eintöpfe stew stews
        m Pfannkuchen Pfannkuchen pancake pancakes""",
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
    "tree": "m Baum Bäume tree trees",
    "vehicle": """
        n Auto Autos car cars; m Zug Züge train trains; m Bus Busse bus buses; n Taxi Taxis taxi taxis
        n Schiff Schiffe ship ships; n Flugzeug Flugzeuge airplane airplanes
        f Straßenbahn Straßenbahnen streetcar streetcars""",
    "talk": """
        f Frage Fragen question questions; n Wort Wörter word words; f Antwort Antworten answer answers
        f Sprache Sprachen language languages; n Problem Probleme problem problems
        m Plan Pläne plan plans""",
    "song": "n Lied Lieder song songs",
    "event": """
        m Film Filme movie movies; n Konzert Konzerte concert concerts; n Spiel Spiele game games
        f Reise Reisen trip trips; f Prüfung Prüfungen exam exams; m Kurs Kurse course courses
        f Besprechung Besprechungen meeting meetings; n Fest Feste festival festivals""",
}
# First part of a compound as it stands in the word, its English, and the heads it goes with.
COMPOUND_TABLE = """
    Küchen kitchen: Tür Fenster Lampe Tisch Stuhl Schrank Regal Uhr Messer
    Keller basement: Tür Fenster Lampe Schlüssel Regal
    Garten garden: Tür Lampe Tisch Stuhl
    Büro office: Tür Fenster Lampe Schlüssel Tisch Stuhl Schrank Regal
    Schul school: Tür Fenster Uhr Tasche Buch Heft Bibliothek Garten Bus
    Hotel hotel: Tür Zimmer Garten Restaurant Bett Schlüssel
    Garagen garage: Tür Fenster Lampe Schlüssel
    Auto car: Tür Fenster Schlüssel Radio
    Kirchen church: Tür Fenster Uhr Schlüssel
    Holz wooden: Tür Tisch Stuhl Regal Schrank Bett Haus Brücke Ring Turm
    Glas glass: Tür Tisch Regal Schrank Lampe Flasche
    Leder leather: Jacke Tasche Mantel Koffer Sofa Handschuh Schuh Mütze
    Woll woolen: Mütze Pullover Jacke Mantel Handschuh Teppich Kleid
    Winter winter: Mantel Jacke Mütze Schuh Handschuh Reise
    Sommer summer: Kleid Jacke Hut Schuh Hemd Haus Fest Reise
    Kinder children's: Buch Zimmer Bett Fahrrad Stuhl Schuh Lied Film Fest
    Stadt city: Park Bibliothek Museum Theater Fest Bus
    Dorf village: Kirche Schule Bäckerei Fest
    Bahnhofs station: Uhr Restaurant Hotel Bäckerei Apotheke
    Hafen harbor: Restaurant Hotel Museum Fest
    Apfel apple: Saft Baum
    Kirsch cherry: Kuchen Saft Baum Marmelade Eis
    Pflaumen plum: Kuchen Marmelade Baum Saft
    Zitronen lemon: Kuchen Saft Eis Tee Baum
    Schokoladen chocolate: Kuchen Eis
    Birnen pear: Kuchen Saft Baum Marmelade
    Tomaten tomato: Suppe Salat Saft
    Kartoffel potato: Suppe Salat
    Zwiebel onion: Suppe Kuchen
    Bohnen bean: Suppe Salat
    Nudel noodle: Suppe Salat
    Fisch fish: Suppe Salat Markt
    Pilz mushroom: Suppe Salat
    Käse cheese: Suppe Brötchen Salat
"""
# German, English, comparatives of both ("-": none used).
ADJECTIVE_TABLE = """
    groß big größer bigger; klein small kleiner smaller; neu new neuer newer; alt old älter older
    jung young jünger younger; schön beautiful schöner more_beautiful; billig cheap billiger cheaper
    teuer expensive teurer more_expensive; schwer heavy schwerer heavier; leicht light leichter lighter
    lang long länger longer; kurz short kürzer shorter; schnell fast schneller faster
    langsam slow langsamer slower; klug smart klüger smarter; reich rich reicher richer
    arm poor ärmer poorer; freundlich friendly freundlicher friendlier; fleißig hard-working - -
    berühmt famous berühmter more_famous; interessant interesting interessanter more_interesting
    langweilig boring langweiliger more_boring; wichtig important wichtiger more_important
    schwierig difficult schwieriger more_difficult; einfach simple einfacher simpler
    lustig funny lustiger funnier; traurig sad - -; ruhig quiet ruhiger quieter
    laut noisy lauter noisier; dunkel dark dunkler darker; hell bright heller brighter
    modern modern moderner more_modern; warm warm wärmer warmer; kalt cold kälter colder
    heiß hot - -; frisch fresh - -; süß sweet süßer sweeter; lecker delicious - -
    gut good besser better; kaputt broken - -; sauber clean - -; schmutzig dirty - -; nass wet - -
    müde tired - -; krank sick - -; glücklich happy - -; hungrig hungry - -; nett nice netter nicer
    rot red - -; blau blue - -; grün green - -; gelb yellow - -; schwarz black - -; weiß white - -
    braun brown - -; grau gray - -
"""
COLORS = "rot blau grün gelb schwarz weiß braun grau".split()
SIZES_AND_AGES = ("groß", "klein", "neu", "alt", "schön", "teuer", "billig")
ADJECTIVES_OF = {  # what a group of nouns can be called
    "person": "jung alt nett freundlich müde krank glücklich klug reich arm fleißig berühmt traurig",
    "kin": "nett freundlich krank müde klug fleißig glücklich berühmt lustig traurig reich",
    "animal": "klein groß alt jung schwarz weiß braun grau müde schön hungrig schnell langsam",
    "thing": "groß klein neu alt schön teuer billig schwer leicht rot blau grün gelb schwarz weiß",
    "clothes": "neu alt schön teuer billig warm nass schmutzig sauber leicht " + " ".join(COLORS),
    "reading": "neu alt interessant langweilig lang kurz lustig traurig wichtig",
    "device": "neu alt teuer billig modern kaputt groß klein schwer laut",
    "furniture": "groß klein neu alt schön teuer billig schwer braun weiß schwarz grau modern",
    "opening": "alt neu groß klein schmutzig sauber kaputt rot blau grün weiß braun",
    "fruit": "frisch groß klein lecker gut billig teuer",
    "cake": "süß lecker frisch groß klein warm gut",
    "dish": "heiß warm kalt lecker frisch gut",
    "food": "frisch lecker gut billig teuer",
    "hot": "heiß kalt warm frisch gut",
    "drink": "kalt süß gut billig teuer",
    "room": "groß klein hell dunkel sauber schmutzig schön modern ruhig warm kalt neu",
    "building": "groß klein alt neu schön modern berühmt ruhig laut",
    "sight": "groß klein alt neu schön berühmt",
    "place": "groß klein schön ruhig berühmt",
    "tree": "groß klein alt schön jung",
    "vehicle": "groß klein neu alt schnell langsam teuer billig modern laut rot blau gelb schwarz weiß",
    "talk": "wichtig schwierig einfach interessant neu alt",
    "song": "schön alt neu traurig lustig kurz lang einfach",
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
    finden - gefunden | find | thing clothes reading animal
    verlieren - verloren | lose | thing clothes reading
    vergessen vergiss vergessen | forget | thing clothes reading noted
    sehen sieh gesehen | see | person kin animal building sight tree show
    hören - gehört | hear | person kin animal song vehicle
    lesen lies gelesen | read | reading
    schreiben - geschrieben | write | written song
    essen iss gegessen | eat | fruit cake dish food
    trinken - getrunken | drink | hot drink
    kochen - gekocht | cook | dish
    backen - gebacken | bake | cake
    besuchen - besucht | visit | person kin building sight
    treffen triff getroffen | meet | person kin
    fragen - gefragt | ask | person kin
    malen - gemalt | paint | building sight tree animal
    putzen - geputzt | clean | room opening
    waschen wäsch gewaschen | wash | clothes car
    reparieren - repariert | repair | device furniture vehicle opening
    bauen - gebaut | build | built
    tragen träg getragen | wear | clothes
    tragen träg getragen | carry | furniture
    fotografieren - fotografiert | photograph | person animal building sight tree
    füttern - gefüttert | feed | animal
    beantworten - beantwortet | answer | question
    singen - gesungen | sing | song
    mieten - gemietet | rent | rented car
    bezahlen - bezahlt | pay for | thing clothes hot drink cake
    bestellen - bestellt | order | dish cake hot drink book
    probieren - probiert | try | cake dish food drink
    lernen - gelernt | learn | language song
    an_rufen - angerufen | call | person kin
    auf_machen - aufgemacht | open | opening opened
    zu_machen - zugemacht | close | opening
    ein_laden läd eingeladen | invite | person kin
    mit_bringen - mitgebracht | bring along | fruit cake dish drink reading
    an_ziehen - angezogen | put on | clothes
    an_probieren - anprobiert | try on | clothes
    auf_räumen - aufgeräumt | tidy up | room
    ab_holen - abgeholt | pick up | person kin package
    an_machen - angemacht | turn on | switched
    aus_machen - ausgemacht | turn off | switched
    ein_packen - eingepackt | pack | reading clothes
    weg_werfen wirf weggeworfen | throw away | thing clothes
    auf_schreiben - aufgeschrieben | write down | noted
    aus_leihen - ausgeliehen | borrow | book
"""
DITRANSITIVE = """
    geben gib gegeben | give | thing reading fruit hot
    zeigen - gezeigt | show | thing reading building room
    schicken - geschickt | send | reading package
    leihen - geliehen | lend | thing book car
    bringen - gebracht | bring | thing fruit cake dish hot drink
    kaufen - gekauft | buy | thing clothes cake
    erklären - erklärt | explain to | noted
    vor_lesen lies vorgelesen | read to | told
    zurück_geben gib zurückgegeben | return to | thing reading
"""
DATIVE = """
    helfen hilf geholfen | help | person kin
    danken - gedankt | thank | person kin
    folgen - +gefolgt | follow | person animal
    gratulieren - gratuliert | congratulate | person kin
    antworten - geantwortet | answer | person kin
    zu_hören - zugehört | listen to | person kin
    vertrauen - vertraut | trust | person kin
"""
# with the preposition and its case; "sich" marks a reflexive verb
PREPOSITIONAL = """
    warten - gewartet | wait for | person kin vehicle | auf acc
    denken - gedacht | think of | person kin event | an acc
    sprechen sprich gesprochen | speak with | person kin | mit dat
    telefonieren - telefoniert | talk on the phone with | person kin | mit dat
    spielen - gespielt | play with | animal | mit dat
    träumen - geträumt | dream of | awaited car | von dat
    lachen - gelacht | laugh about | told show | über acc
    freuen - gefreut | look forward to | awaited | sich auf acc
    erinnern - erinnert | remember | person kin event | sich an acc
    interessieren - interessiert | be interested in | talk sight vehicle | sich für acc
    kümmern - gekümmert | take care of | person kin animal | sich um acc
"""
INTRANSITIVE = """
    arbeiten - gearbeitet | work
    schlafen schläf geschlafen | sleep
    tanzen - getanzt | dance
    lachen - gelacht | laugh
    weinen - geweint | cry
    singen - gesungen | sing
    schwimmen - +geschwommen | swim
    frühstücken - gefrühstückt | have breakfast
    ein_kaufen - eingekauft | shop
    fern_sehen sieh ferngesehen | watch television
    auf_stehen - +aufgestanden | get up
    ein_schlafen schläf +eingeschlafen | fall asleep
    auf_wachen - +aufgewacht | wake up
    zurück_kommen - +zurückgekommen | come back
    an_kommen - +angekommen | arrive
    um_ziehen - +umgezogen | move
"""
IDIOMS = """
    spielen - gespielt | play | soccer | Fußball
    spielen - gespielt | play | the piano | Klavier
    spielen - gespielt | play | cards | Karten
    lernen - gelernt | learn | German | Deutsch
    gehen - +gegangen | go | home | nach Hause
    kommen - +gekommen | come | home | nach Hause
    gehen - +gegangen | go | to bed | ins Bett
    gehen - +gegangen | go | for a walk | spazieren
    bleiben - +geblieben | stay | at home | zu Hause
    fahren fähr +gefahren | ride | a bicycle | Fahrrad
"""
IRREGULAR = """
    buy bought bought; sell sold sold; find found found; lose lost lost; forget forgot forgotten
    see saw seen; hear heard heard; read read read; write wrote written; eat ate eaten
    drink drank drunk; meet met met; build built built; wear wore worn; feed fed fed
    sing sang sung; pay paid paid; bring brought brought; put put put; throw threw thrown
    give gave given; show showed shown; send sent sent; lend lent lent; think thought thought
    speak spoke spoken; take took taken; sleep slept slept; swim swam swum; have had had; get got gotten
    fall fell fallen; wake woke woken; come came come; go went gone; ride rode ridden; run ran run
    fly flew flown; sit sat sat; stand stood stood; lie lay lain; hang hung hung; know knew known
    understand understood understood; cost cost cost; be was been; begin began begun; leave left left
"""
DOUBLING = ("get", "put", "shop", "swim", "run", "sit", "forget", "begin")
UNPLANNED = ("verlieren", "vergessen", "weinen", "ein_schlafen", "auf_wachen", "erinnern", "denken")
MOMENTARY = (
    *UNPLANNED,
    "finden",
    "sehen",
    "hören",
    "treffen",
    "vertrauen",
    "interessieren",
    "freuen",
)
NAMED_GROUPS = {  # objects of a few verbs, each noun by name (and the compounds with it)
    "question": "Frage",
    "language": "Sprache",
    "package": "Paket",
    "car": "Auto",
    "switched": "Radio Lampe Fernseher Computer",
    "opened": "Paket Koffer Flasche Brief Geschenk",
    "book": "Buch Wörterbuch Heft Zeitung",
    "written": "Brief Buch Geschichte",
    "told": "Brief Buch Geschichte",
    "noted": "Wort Frage Antwort Plan Problem",
    "show": "Film Konzert Spiel",
    "awaited": "Film Konzert Spiel Reise Fest",
    "rented": "Wohnung Zimmer Büro Garage Haus",
    "built": "Haus Schule Kirche Hotel Museum Brücke Turm",
}

# --- Lexicon: adverbs, places, names ---------------------------------------------------------------
