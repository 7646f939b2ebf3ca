"""Test a report in headless Chromium: the actions of a reader, malicious texts, and accessibility."""

from __future__ import annotations

import json
import shutil
from base64 import b64decode
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.report.outputs import CORRECTED, CORRECTIONS, HARM, TURNED, WORD, sample, score, statement, write_output
from untold.jobs.api import open_run
from untold.jobs.cli.main import main
from untold.jobs.report import sources
from untold.jobs.report.page import make_report

webdriver = pytest.importorskip("selenium.webdriver")
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.remote.webelement import WebElement  # noqa: E402
from selenium.webdriver.support.wait import WebDriverWait  # noqa: E402

CHROMIUM, CHROMEDRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not (CHROMIUM and CHROMEDRIVER), reason="no chromium and chromedriver: apt-get install chromium chromium-driver"
)
# Disable the network connections of the browser itself
FLAGS = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
FLAGS += "--disable-component-update --disable-sync --window-size=1280,900"
AXE = "axe.run(document, {resultTypes: ['violations']}).then((found) => arguments[0](found.violations))"
WIDE, NARROW = 1_280, 400
MANY = [{"id": f"c{number}", "text": f"Context {number}."} for number in range(10_000)]
ICAT = {"sample_id": "s1", "metric": "icat", "claim_id": "k1"}
TABLES: dict[str, list[dict[str, Any]]] = {
    "samples": [
        sample("s1"),
        sample("s2", response="It has 12 bells.", system="b"),
        sample("harm", HARM, f"{HARM} {TURNED} {WORD}", system=TURNED),
        sample("many", "Why so many?", "", contexts=MANY),
    ],
    "scores": [
        score("s1"),
        score("s1", "nli", 0.75),
        score("s1", "icat", 1.0, covered=1, uncovered=0),
        score("s2", system="b", value=0.25, uncovered=3),
        score("harm", value=0.0, system=TURNED, covered=0, uncovered=1),
        score("many", value=None, status="failed", covered=None, uncovered=None),
    ],
    "statements": [
        statement("s1", 1, "The tower is 8 m high.", True),
        statement("s1", 2, "It has 12 bells.", False, sources=["c2"]),
        statement("s2", 1, "The tower is 8 m high.", False),
        statement("s2", 2, "It has 12 bells.", True, sources=["c2"]),
        statement("harm", 1, f"{HARM} {TURNED}", False),
        statement("s1", 1, "It is 8 m high.", True, "nli", in_basis=False, members=["It is 8 m high."]),
        statement("s1", 2, "It is 9 m high.", False, "nli", in_basis=True, members=["It is 9 m high."]),
        statement("s1", 1, "height", True, "icat", sources=None, claims=["k1"]),
    ],
    "atoms": [
        {"sample_id": "s1", "metric": "nli", "atom_id": f"a{n}", "text": f"Atom {n}", "origin": "context", "kept": True}
        | {"statement_id": f"s1:nli:{n}"}
        for n in (1, 2)
    ],
    "relations": [
        {"sample_id": "s1", "metric": "nli", "premise_id": "a1", "hypothesis_id": "a2", "relation": "contradiction"}
    ],
    "claims": [{**ICAT, "position": 1, "text": "It is 8 m high.", "verdict": "supported", "evidence": ["d#0"]}],
    "evidence": [{**ICAT, "chunk_id": "d#0", "rank": 1, "relation": "entailment"}],
    "chunks": [{"chunk_id": "d#0", "text": "It rained. It is 8 m high."}],
    "failures": [{"sample_id": "many", "metric": "e2e", "stage": "judge", "error_type": "timeout", "error": HARM}],
    "usage": [{"stage": "evaluate_coverage", "model": "a-judge", "requests": 4}],
}


class Reader:
    """A reader with a browser that shows the report."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, page: Path, width: int = WIDE, *, dark: bool = False, first: str = "") -> None:
        """Open a page from disk with the given width and color scheme.

        The script `first` runs before the scripts of the page.
        """
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.devtools("Emulation.setDeviceMetricsOverride", **size)
        self.emulate("", dark=dark)
        added = self.devtools("Page.addScriptToEvaluateOnNewDocument", source=first)
        self.driver.get(page.as_uri())
        self.devtools("Page.removeScriptToEvaluateOnNewDocument", **added)
        state = "return document.documentElement.dataset.ready || !document.getElementById('problem').hidden"
        WebDriverWait(self.driver, 60).until(lambda _: self.run(state))

    def emulate(self, media: str, *, dark: bool = False) -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.devtools("Emulation.setEmulatedMedia", media=media, features=[scheme])

    def devtools(self, command: str, **parameters: Any) -> dict[str, Any]:
        found: dict[str, Any] = self.driver.execute_cdp_cmd(command, parameters)
        return found

    def run(self, script: str) -> Any:
        return self.driver.execute_script(script)

    def find(self, selector: str) -> WebElement:
        found: WebElement = self.driver.find_element(By.CSS_SELECTOR, selector)
        return found

    def texts(self, selector: str) -> list[str]:
        return [one.text for one in self.driver.find_elements(By.CSS_SELECTOR, selector)]

    def press(self, *keys: str) -> None:
        self.driver.switch_to.active_element.send_keys(*keys)

    def rows(self) -> list[str]:
        """Return the samples of the table of answers with their metrics, in order."""
        ids, metrics = (self.texts(f"#answers-table tbody td:nth-child({place})") for place in (8, 4))
        return [f"{name} {metric}" for name, metric in zip(ids, metrics, strict=True)]

    def open_answer(self, name: str, metric: str) -> None:
        place = self.rows().index(f"{name} {metric}")
        self.driver.find_elements(By.CSS_SELECTOR, "#answers-table tbody button")[place].send_keys(Keys.ENTER)

    def errors(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser")]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    file = folder / "report.html"
    file.write_text(make_report([open_run(write_output(folder / "out", TABLES))]), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def reader() -> Iterator[Reader]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for one in FLAGS.split():
        options.add_argument(one)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(CHROMEDRIVER))
    driver.set_script_timeout(120)
    yield Reader(driver)
    driver.quit()


@pytest.fixture
def opened(reader: Reader, page: Path) -> Reader:
    reader.open(page)
    return reader


def test_the_table_sorts_both_ways_and_shows_the_order(opened: Reader) -> None:
    everything = ["harm e2e", "s2 e2e", "s1 e2e", "s1 nli", "s1 icat", "many e2e"]
    assert opened.rows() == everything
    head = opened.find("#answers-table th:nth-child(2)")
    assert head.get_attribute("aria-sort") == "ascending"
    head.find_element(By.TAG_NAME, "button").click()
    # The sample without a score remains the last row
    assert opened.rows() == [*everything[-2::-1], "many e2e"]
    assert head.get_attribute("aria-sort") == "descending"


@pytest.mark.parametrize(
    ("label", "value", "left"),
    [
        ("System", "b", ["s2 e2e"]),
        ("Metric", "nli", ["s1 nli"]),
        ("Status", "failed", ["many e2e"]),
        ("Score from", "0.7", ["s1 nli", "s1 icat"]),
        ("Score to", "0.2", ["harm e2e"]),
        ("Text", "12 BELLS", ["s2 e2e", "s1 e2e"]),
        ("Text", "no such words", []),
    ],
)
def test_the_table_filters(opened: Reader, label: str, value: str, left: list[str]) -> None:
    field = opened.driver.find_element(By.XPATH, f"//label[starts-with(., '{label}')]/*[self::select or self::input]")
    field.send_keys(value)
    assert opened.rows() == left
    opened.driver.find_element(By.XPATH, "//button[.='Clear']").click()
    assert len(opened.rows()) == 6


def test_an_answer_is_opened_read_and_closed_by_keyboard(opened: Reader) -> None:
    opened.open_answer("s1", "e2e")
    assert opened.texts("#opened-title") == ["How high is it?"]
    assert opened.texts("dialog h3")[:3] == ["Response", "Missing: 1", "Covered: 1"]
    assert opened.run("return document.querySelector('dialog .prose mark').firstChild.data") == "It is 8 m high."
    opened.find("dialog .missing summary").send_keys(Keys.ENTER)
    assert opened.texts("dialog .missing mark") == ["It has 12 bells."]
    opened.press(Keys.ARROW_RIGHT)
    assert "nli 0.750" in opened.find("dialog .facts").text
    opened.press(Keys.ARROW_LEFT)
    assert "e2e 0.500" in opened.find("dialog .facts").text
    opened.press(Keys.ESCAPE)
    assert not opened.run("return document.querySelector('dialog').open")
    assert opened.driver.switch_to.active_element.text == "How high is it?"


def test_the_graph_is_drawn_with_its_conflict_and_basis_and_zooms(opened: Reader) -> None:
    opened.open_answer("s1", "nli")
    assert opened.texts("dialog .graph .crossing") == ["≠"]
    assert ["★" in text for text in opened.texts("dialog .graph .label")] == [True, False]
    assert "1 It is 9 m high. ≠ contradicts 2 It is 8 m high." in opened.texts("dialog section > div > ul > li")
    box = "return document.querySelector('.graph').getAttribute('viewBox')"
    boxes = [opened.run(box)]
    opened.find(".graph").send_keys("+")
    boxes.append(opened.run(box))
    opened.run("document.querySelector('.graph').dispatchEvent(new WheelEvent('wheel', {deltaY: -9}))")
    boxes.append(opened.run(box))
    widths = [float(one.split()[2]) for one in boxes]
    assert widths == sorted(set(widths), reverse=True)
    opened.find(".graph").send_keys("0")
    assert opened.run(box) == boxes[0]
    opened.find(".graph .basis").click()
    assert "It is 9 m high. (missing statement, basis)" in opened.find("dialog .caption").text


def test_claims_have_their_verdicts_and_evidence(opened: Reader) -> None:
    opened.open_answer("s1", "icat")
    assert "It is 8 m high. supported" in opened.find("dialog .columns + section").text
    opened.find("dialog .columns + section summary").click()
    assert opened.texts("dialog .below mark") == ["It is 8 m high."]


def test_two_systems_are_compared_on_their_shared_queries(opened: Reader) -> None:
    told = "1 query in common. Statements: both cover 0, only the first 1, only the second 1, both miss 0."
    assert opened.find("#beside-table [role=status]").text == told
    opened.find("#beside-table button.link").click()
    headings = opened.texts("dialog h3")
    assert {"Only a covers: 1", "Only b covers: 1", "Both miss: 0", "Both cover: 0"} <= set(headings)


def test_hostile_texts_are_texts(opened: Reader) -> None:
    opened.open_answer("harm", "e2e")
    assert opened.run("return [window.harmed === undefined, document.images.length]") == [True, 0]
    assert HARM in opened.find("dialog .prose").text
    style = "const one = [...document.querySelectorAll('bdi')].find((bdi) => bdi.textContent.includes('\u202e')); "
    assert opened.run(f"{style}return getComputedStyle(one).unicodeBidi") == "isolate"
    opened.press(Keys.ESCAPE)
    opened.open_answer("many", "e2e")
    opened.find("dialog details summary").click()
    assert len(opened.texts("dialog details li")) == 100
    assert opened.texts("dialog details button") == ["Show 100 more of 9,900"]
    assert opened.run("return document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.gate
@pytest.mark.parametrize("width", [WIDE, NARROW])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_everyone_can_read_it(reader: Reader, page: Path, width: int, dark: bool) -> None:
    reader.open(page, width, dark=dark)
    reader.run(files("axe_core_python").joinpath("axe.min.js").read_text(encoding="utf-8"))
    for metric in (None, "nli"):
        if metric is not None:
            reader.run("document.querySelectorAll('#answers-table tbody button')[3].click()")
        found = reader.driver.execute_async_script(AXE)
        bad = [(one["id"], one["nodes"][0]["html"]) for one in found if one["impact"] in ("serious", "critical")]
        assert bad == []
    assert reader.run("return document.documentElement.scrollWidth <= innerWidth")


def test_it_prints_the_page_or_only_the_opened_answer(opened: Reader) -> None:
    opened.emulate("print")
    assert not opened.find("nav").is_displayed()
    assert opened.find("#systems").is_displayed()
    opened.emulate("")
    opened.open_answer("s1", "e2e")
    opened.emulate("print")
    assert not opened.find("#systems").is_displayed()
    assert opened.find("dialog .prose").is_displayed()
    assert b64decode(opened.devtools("Page.printToPDF")["data"]).startswith(b"%PDF")


def test_no_network_request_is_sent_and_no_error_is_logged(opened: Reader) -> None:
    opened.open_answer("s1", "nli")
    assert opened.run("return performance.getEntriesByType('resource').length") == 0
    assert opened.errors() == []
    # The page never tries to fetch, so this checks the policy of the page
    opened.run("fetch('https://example.org').catch(() => 0)")
    assert any("Content Security Policy" in message for message in opened.errors())


def test_a_packed_report_opens_from_disk_or_states_its_requirement(
    reader: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "PLAIN", 0)
    file = tmp_path / "packed.html"
    file.write_text(make_report([open_run(write_output(tmp_path / "out", TABLES))]), encoding="utf-8")
    assert 'type="application/gzip"' in file.read_text(encoding="utf-8")
    reader.open(file)
    assert len(reader.rows()) == 6
    reader.open(file, first="delete window.DecompressionStream")
    assert "This browser cannot unpack the answers" in reader.find("#problem").text
    assert json.loads(reader.run("return JSON.stringify(document.querySelectorAll('#systems tbody tr').length)")) > 0


def test_corrections_are_a_file_that_estimate_reads(
    reader: Reader, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, folder = write_output(tmp_path / "out", CORRECTED), tmp_path / "downloads"
    file = tmp_path / "report.html"
    file.write_text(make_report([open_run(run)]), encoding="utf-8")
    reader.devtools("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder))
    reader.open(file)
    reader.open_answer("007", "e2e")
    boxes = reader.driver.find_elements(By.CSS_SELECTOR, "dialog .statements input")
    named = {box.get_attribute("aria-label"): box for box in boxes}
    assert not reader.find("dialog section p .button").is_enabled()
    number = next(
        place for place, text in enumerate(reader.texts("dialog .statements li .words"), start=1) if "loud" in text
    )
    boxes[number - 1].send_keys(Keys.SPACE)
    assert len(named) == 3
    reader.press(Keys.ESCAPE)
    reader.open_answer("s2", "e2e")
    first, second = reader.driver.find_elements(By.CSS_SELECTOR, "dialog .statements input")
    assert [one.get_property("indeterminate") for one in (first, second)] == [True, False]
    second.send_keys(Keys.SPACE)
    assert "2 answers with corrections under e2e" in reader.find("dialog").text
    reader.find("dialog section p .button").send_keys(Keys.ENTER)
    saved = folder / "corrections-out-e2e.csv"
    WebDriverWait(reader.driver, 20).until(lambda _: saved.exists())
    assert not reader.errors()

    assert saved.read_bytes().decode() == CORRECTIONS
    assert main(["estimate", str(run), "--labels", str(saved), "--json"]) == 0
    estimates = json.loads(capsys.readouterr().out)["estimates"]
    (row,) = (row for row in estimates if row["level"] == "overall")
    assert (row["judged"], row["plain_mean"]) == (2, pytest.approx(1 / 3))


@pytest.mark.gate
def test_a_notebook_frame_works_without_the_rights_of_the_notebook(reader: Reader, tmp_path: Path) -> None:
    run = open_run(write_output(tmp_path / "out", TABLES))
    file = tmp_path / "notebook.html"
    file.write_text(f"<!doctype html><p id='problem'>{run.report()._repr_html_()}", encoding="utf-8")
    reader.open(file)
    reader.driver.switch_to.frame(0)
    WebDriverWait(reader.driver, 60).until(lambda _: reader.run("return document.documentElement.dataset.ready"))
    assert len(reader.rows()) == 6
    reader.driver.switch_to.default_content()


def test_criteria_are_shown_by_dimension_with_their_points_and_reasons(reader: Reader, tmp_path: Path) -> None:
    one = {"sample_id": "s1", "metric": "rubric", "number": 1, "criterion_id": "1", "text": HARM, "points": 4.0}
    criteria = [
        {**one, "dimension": "safety", "verdict": "met", "earned": 4.0, "reason": f"It says {HARM}"},
        {**one, "number": 2, "text": "Rambles", "points": -10.0, "verdict": "met", "earned": -10.0, "reason": None},
        {**one, "number": 3, "text": "Is clear", "points": 2.0, "verdict": "graded", "grade": "fair", "earned": 1.0},
        {**one, "number": 4, "text": "Is short", "points": 1.0},
    ]
    rows = {"samples": [sample("s1")], "scores": [score("s1", "rubric", -1.5)], "criteria": criteria}
    file = tmp_path / "report.html"
    file.write_text(make_report([open_run(write_output(tmp_path / "out", rows))]), encoding="utf-8")
    reader.open(file)
    reader.open_answer("s1", "rubric")
    assert [text for text in reader.texts("dialog h3") if "points" in text] == [
        "safety: 4.0 of 4.0 points",
        "Criteria: -9.0 of 3.0 points",
    ]
    shown = reader.texts("dialog .statements summary")
    assert [text.split(" ", 3)[0] for text in shown] == ["4.0", "-10.0", "1.0", "not"]
    assert "fair" in shown[2]
    reader.find("dialog .statements summary").send_keys(Keys.ENTER)
    assert HARM in reader.texts("dialog .below")[0]
    assert not reader.errors()


def test_sentences_are_shown_with_their_sources_and_reasons(reader: Reader, tmp_path: Path) -> None:
    one = {"sample_id": "s1", "metric": "citations", "sentence_number": 1, "sentence": HARM, "citation": 0}
    citations = [
        {**one, "support": "partial", "status": "judged", "reason": f"It says {HARM}"},
        {**one, "citation": 1, "source": HARM, "support": "none", "status": "judged", "reason": "It differs."},
        {**one, "citation": 2, "source": "[7]", "status": "no_source", "reason": "no text"},
        {**one, "sentence_number": 2, "sentence": "Rain falls.", "status": "uncited"},
    ]
    rows = {"samples": [sample("s1")], "scores": [score("s1", "citations", 0.25)], "citations": citations}
    file = tmp_path / "report.html"
    file.write_text(make_report([open_run(write_output(tmp_path / "out", rows))]), encoding="utf-8")
    reader.open(file)
    reader.open_answer("s1", "citations")
    assert "1 of 2 sentences with a citation" in reader.texts("dialog h3")
    shown = reader.texts("dialog .statements summary")
    assert [text.split()[0] for text in shown] == ["partial", "uncited"]
    reader.find("dialog .statements summary").send_keys(Keys.ENTER)
    below = reader.texts("dialog .below")[0]
    assert HARM in below
    assert ["no support" in below, "no source" in below, "It differs." in below] == [True] * 3
    assert not reader.errors()
