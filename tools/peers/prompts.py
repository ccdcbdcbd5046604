"""Prompts of twenty kinds."""

from .programs import ROOT

LONG = 6000  # characters of the longest

PROMPTS = {
    "prose": "The carriage had scarcely turned into the avenue when the old gentleman, who had been watching"
    " from the library window, put down his spectacles and",
    "dialogue": '"Did you lock the door?" she asked.\n\n"Twice," he said. "Once for you and once for me."\n\n"And'
    ' the window?"\n\n',
    "poetry": "The rain walks softly on the slates,\nThe gutters hum their single tune,\nA lantern at the garden"
    " gates\n",
    "news": "LISBON, Tuesday - The city council voted late on Monday to close the old harbour road to cars"
    " from next spring, a decision that",
    "recipe": "Lentil soup for four\n\nIngredients:\n- 250 g brown lentils\n- 1 onion\n- 2 carrots\n- 1 litre of"
    " stock\n\nMethod:\n1.",
    "list": "Planets of the solar system, from the sun outwards:\n1. Mercury\n2. Venus\n3. Earth\n4.",
    "python": 'def is_prime(n):\n    """Return True if n is a prime number."""\n    if n < 2:\n        return'
    " False\n",
    "c++": "#include <vector>\n\n// Returns the index of the first element that is not less than value.\nstd::size_t"
    " lower_bound(const std::vector<int>& v, int value) {\n",
    "sql": "-- The ten customers who spent most in 2025\nSELECT c.name, SUM(o.total) AS spent\nFROM customers"
    " c\n",
    "shell": "$ ls -l\ntotal 12\n-rw-r--r-- 1 ann ann  812 Mar  3 10:01 notes.txt\n-rw-r--r-- 1 ann ann 2048 Mar  3"
    " 10:02 data.csv\n$ wc -l notes.txt\n",
    "json": '{"name": "Ada", "born": 1815, "fields": ["mathematics", "computing"]}\n{"name": "Alan", "born": 1912,'
    ' "fields": [',
    "html": '<table>\n  <tr><th>City</th><th>Country</th></tr>\n  <tr><td>Paris</td><td>France</td></tr>\n  <tr>',
    "csv": "date,open,high,low,close\n2025-01-02,101.5,103.2,100.9,102.7\n2025-01-03,102.7,104.0,101.8,",
    "maths": "Question: A train travels 180 km in 2 hours. How far does it travel in 5 hours at the same"
    " speed?\nAnswer: Its speed is",
    "letter": "Dear Mrs. Hartley,\n\nThank you for your letter of the 3rd of May. I am sorry to tell you that",
    "encyclopedia": "The honey bee (Apis mellifera) is a species of social insect that",
    "german": "Der alte Leuchtturm stand seit mehr als hundert Jahren auf der Klippe, und jeden Abend",
    "french": "Il était une fois, dans un petit village au bord de la mer, un pêcheur qui",
    "scripts": "Hello. Привет. Γειά σου. こんにちは。 你好。 안녕하세요. \U0001f30d\U0001f44b Hello.",
}


def prompts_of_all_kinds():
    story = sorted((ROOT / "prompts").glob("*.txt"))[0].read_text()
    return PROMPTS | {"long story": story[:LONG].rstrip()}
