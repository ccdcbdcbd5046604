#!/usr/bin/env python3
"""The server's page in a headless Chromium. Usage: page_cli_test.py BINARY [unittest arguments]

Exit code 77 where there is no chromium or chromedriver (Debian: chromium-driver). The folder that
QUANTSPEC_SHOTS names gets a picture of each state. Standard library only.
"""

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request
from pathlib import Path

import cli_support
from cli_support import environment

PROMPT = "It was a dark and stormy night, and the old lighthouse"
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # how WebDriver says that something is one


def ask(url, body=None, method=None, headers=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json", **(headers or {})},
                                     method=method)
    with urllib.request.urlopen(request, timeout=cli_support.HANGS) as reply:
        return json.loads(reply.read())


class Server:
    def __init__(self, *options):
        self.process = subprocess.Popen(
            [cli_support.binary, "serve", "-c", "1024", "-t", "1", "--port", "0", *options],
            stderr=subprocess.DEVNULL, stdout=subprocess.PIPE, env=environment())
        self.url = "http://" + self.process.stdout.readline().decode().split(" at http://")[1].split("/")[0].strip()

    def end(self):
        self.process.terminate()
        self.process.communicate()


class Browser:
    """W3C's WebDriver, as much of it as is needed."""

    def __init__(self, width, height):
        self.driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE,
                                       stderr=subprocess.DEVNULL)
        for line in self.driver.stdout:  # ends where the driver does
            if b"started successfully on port" in line:
                break
        port = int(line.decode().rstrip(".\n").split()[-1])
        self.profile = tempfile.TemporaryDirectory()
        chrome = {"args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                           f"--user-data-dir={self.profile.name}"],
                  "mobileEmulation": {"deviceMetrics": {"width": width, "height": height, "pixelRatio": 1,
                                                        "mobile": False, "touch": False}}}
        wanted = {"browserName": "chrome", "goog:chromeOptions": chrome, "goog:loggingPrefs": {"browser": "ALL"}}
        driver = f"http://127.0.0.1:{port}/session"
        session = ask(driver, {"capabilities": {"alwaysMatch": wanted}})["value"]["sessionId"]
        self.url = f"{driver}/{session}"

    def end(self):
        try:
            ask(self.url, method="DELETE")
        finally:
            self.driver.terminate()
            self.driver.communicate()
            self.profile.cleanup()

    def post(self, path, **body):
        return ask(f"{self.url}/{path}", body)["value"]

    def run(self, script, *args):
        return self.post("execute/sync", script=script, args=args)

    def element(self, selector):
        return self.post("element", using="css selector", value=selector)[ELEMENT]

    def click(self, selector):
        self.post(f"element/{self.element(selector)}/click")

    def fill(self, selector, text):
        one = self.element(selector)
        self.post(f"element/{one}/clear")
        self.post(f"element/{one}/value", text=text)

    def text(self, selector):
        return self.run("return document.querySelector(arguments[0]).textContent", selector)

    def wait(self, condition, seconds=60):
        end = time.monotonic() + seconds
        while not self.run(f"return Boolean({condition})"):
            if time.monotonic() > end:
                raise AssertionError(f"{condition}: not within {seconds} s; the page says: "
                                     + self.text("#alert") + self.text("#state"))
            time.sleep(0.05)

    def label(self, one):
        return ask(f"{self.url}/element/{one}/computedlabel")["value"]

    def log(self):
        """What the browser complained of: errors of scripts, what the page's policy forbade."""
        return [entry["message"] for entry in self.post("se/log", type="browser")]

    def shot(self, name):
        folder = os.environ.get("QUANTSPEC_SHOTS")
        if folder:
            picture = base64.b64decode(ask(f"{self.url}/screenshot")["value"])
            (Path(folder) / f"{name}.png").write_bytes(picture)


class Page(unittest.TestCase):
    width, height = 1280, 1000

    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.browser = Browser(cls.width, cls.height)

    @classmethod
    def tearDownClass(cls):
        cls.browser.end()
        cls.server.end()

    def setUp(self):
        self.open(self.server)
        self.browser.log()  # of the page before

    def open(self, server):
        self.browser.post("url", url=server.url + "/")
        self.browser.wait("document.documentElement.dataset.known === 'yes'")

    def write(self, prompt, tokens, drafts):
        self.browser.run("document.getElementById('prompt').value = arguments[0]", prompt)
        self.browser.fill("#tokens", str(tokens))
        self.browser.run("document.getElementById('drafts').value = arguments[0]", drafts)
        self.browser.click("#write")

    def done(self):
        self.browser.wait("document.documentElement.dataset.state === 'idle'")
        self.assertEqual(self.browser.text("#alert"), "")

    def shown(self, kinds):
        """The text in spans of these kinds."""
        return self.browser.run(
            "return [...document.getElementById('text').children]"
            ".filter(one => arguments[0].includes(one.className)).map(one => one.textContent).join('')", kinds)

    def test_shows_the_text_and_the_numbers_of_the_reply(self):
        self.write(PROMPT, 80, "3")
        self.done()
        self.browser.shot("text")
        reply = ask(self.server.url + "/v1/completions", {"prompt": PROMPT, "max_tokens": 80, "temperature": 0})
        self.assertEqual(self.shown(["given"]), PROMPT)
        self.assertEqual(self.shown(["drafted", "found", "own"]), reply["choices"][0]["text"])
        self.assertEqual(self.browser.text("#n-tokens"), "80")
        # What the page counted token by token is what the reply says of itself at its end.
        told = self.browser.run("return answer.told")
        counted = self.browser.run("return answer")
        self.assertEqual(len(counted["rounds"]), told["rounds"])
        self.assertEqual((counted["drafted"], counted["accepted"]), (told["drafted"], told["accepted"]))
        self.assertEqual([place["accepted"] / place["drafted"] for place in counted["depths"]],
                         told["accepted_per_position"])
        self.assertEqual(self.browser.text("#n-rounds"), str(told["rounds"]))
        self.assertEqual(self.browser.text("#n-drafted"), str(told["drafted"]))
        self.assertEqual(self.browser.text("#n-accepted"),
                         f"{told['accepted']} ({100 * told['acceptance_rate']:.1f} %)")
        shares = self.browser.run("return [...document.querySelectorAll('#depths tr')].map(row => "
                                  "row.children[1].textContent)")
        self.assertEqual(shares, [f"{100 * share:.1f} %" for share in told["accepted_per_position"]])
        self.assertEqual(self.shown(["rejected"]) != "", told["accepted"] < told["drafted"])
        self.assertGreater(float(self.browser.text("#speed").replace(",", "")), 0)
        self.browser.wait("document.getElementById('s-batch').textContent === '1'")
        self.browser.wait("document.getElementById('s-running').textContent === '0'")
        self.assertEqual(self.browser.log(), [])

    def test_rejected_drafts_can_be_hidden(self):
        self.write(PROMPT, 40, "4")
        self.done()
        visible = "return getComputedStyle(document.querySelector('#text .rejected')).display !== 'none'"
        self.assertTrue(self.browser.run(visible))
        self.browser.click("#show-rejected")
        self.assertFalse(self.browser.run(visible))

    def test_a_text_goes_on(self):
        self.write(PROMPT, 20, "")
        self.done()
        self.browser.click("#go-on")
        self.done()
        whole = ask(self.server.url + "/v1/completions", {"prompt": PROMPT, "max_tokens": 20, "temperature": 0})
        text = PROMPT + whole["choices"][0]["text"]
        further = ask(self.server.url + "/v1/completions", {"prompt": text, "max_tokens": 20, "temperature": 0})
        self.assertEqual(self.shown(["given", "drafted", "found", "own"]), text + further["choices"][0]["text"])

    def test_stop_ends_the_work(self):
        self.write(PROMPT, 900, "0")
        self.browser.wait("Number(document.getElementById('n-tokens').textContent) > 5")
        self.browser.shot("writing")
        self.browser.click("#stop")
        self.done()
        self.assertEqual(self.browser.text("#state"), "stopped")
        self.browser.wait("document.getElementById('s-running').textContent === '0'")
        self.assertLess(len(self.shown(["drafted", "found", "own"]).split()), 900)

    def test_what_is_written_is_text_and_no_page(self):
        hostile = "<img src=x onerror=alert(1)><script>document.title = 'x'</script>"
        self.write(hostile, 5, "")
        self.done()
        self.assertEqual(self.shown(["given"]), hostile)
        self.assertEqual(self.browser.run("return document.querySelectorAll('#text img, #text script').length"), 0)
        self.assertEqual(self.browser.log(), [])

    def test_errors_are_said(self):
        self.browser.fill("#tokens", "0")
        self.browser.click("#write")
        self.assertFalse(self.browser.run("return document.getElementById('tokens').checkValidity()"))
        self.browser.fill("#tokens", "10")
        self.browser.run("document.getElementById('prompt').value = 'the '.repeat(3000)")
        self.browser.click("#write")
        self.browser.wait("document.getElementById('alert').textContent !== ''")
        self.assertIn("1024", self.browser.text("#alert"))
        self.browser.wait("document.documentElement.dataset.state === 'idle'")

    def test_a_key_is_asked_for(self):
        with tempfile.NamedTemporaryFile("w") as keys:
            keys.write("a-secret-key\n")
            keys.flush()
            server = Server("--api-key-file", keys.name)
            try:
                self.browser.post("url", url=server.url + "/")
                self.browser.wait("!document.getElementById('key-place').hidden")
                self.assertIn("key", self.browser.text("#alert"))
                self.browser.fill("#key", "a-secret-key")
                self.browser.wait("document.documentElement.dataset.known === 'yes'")
                self.browser.wait("document.getElementById('alert').textContent === ''")
                self.write(PROMPT, 5, "")
                self.done()
                self.assertEqual(self.browser.text("#n-tokens"), "5")
            finally:
                server.end()

    def test_everything_has_a_name_for_who_does_not_see_it(self):
        for one in self.browser.post("elements", using="css selector",
                                     value="button, input, select, textarea, [role=region], [role=img], section"):
            if not self.browser.run("return arguments[0].offsetParent === null", one):
                self.assertNotEqual(self.browser.label(one[ELEMENT]), "", one)
        self.assertEqual(self.browser.run("return document.documentElement.lang"), "en")


class Narrow(Page):
    """The same on a telephone."""

    width, height = 360, 800

    def test_fits(self):
        self.write(PROMPT + " " + "w" * 200, 60, "3")
        self.done()
        self.browser.shot("narrow")
        self.assertLessEqual(self.browser.run("return document.documentElement.scrollWidth"), 360)


if __name__ == "__main__":
    if not (shutil.which("chromedriver") and shutil.which("chromium")):
        print("skipped: no chromium with its driver here")
        sys.exit(77)
    cli_support.main(__doc__)
