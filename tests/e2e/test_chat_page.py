"""The chat page in a headless Chromium."""
import os
import tempfile
import unittest

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from attune_server import ServerCase

SECONDS = 120


class ChatPageCase(ServerCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        options = webdriver.ChromeOptions()
        options.binary_location = "/usr/bin/chromium"
        for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                         "--window-size=1100,800"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        cls.browser = webdriver.Chrome(options=options,
                                       service=webdriver.ChromeService("/usr/bin/chromedriver"))

    @classmethod
    def tearDownClass(cls):
        cls.browser.quit()
        super().tearDownClass()

    def setUp(self):
        self.browser.get(self.server.url + "/")
        self.until(lambda: "ready" in self.find("#state").get_attribute("class"))

    def find(self, selector):
        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector):
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def until(self, condition):
        return WebDriverWait(self.browser, SECONDS, 0.05).until(lambda _: condition())

    def set(self, name, value):
        self.browser.execute_script(f"document.getElementById('{name}').value = arguments[0]", value)

    def written(self):
        """The last answer is complete."""
        return self.find("#send").text == "Send" and not self.all(".writing")

    def screenshot(self, name):
        folder = os.environ.get("ATTUNE_SCREENSHOTS")
        if folder:
            self.browser.save_screenshot(os.path.join(folder, name + ".png"))


class ChatPageTest(ChatPageCase):
    def test_a_conversation(self):
        self.screenshot("empty")
        self.set("temperature", "0")
        self.set("max_tokens", "80")
        self.find("#input").send_keys("What is the capital of France?", Keys.ENTER)
        # The text grows while it is written.
        self.until(lambda: len(self.find(".assistant .text").text) > 3)
        early = self.find(".assistant .text").text
        self.until(self.written)
        answer = self.find(".assistant .text").text
        self.assertTrue(answer.startswith(early[:3]))
        self.assertIn("Paris", answer)
        self.assertEqual(self.find(".user").text, "What is the capital of France?")
        self.assertRegex(self.find(".assistant .note").text, r"\d+ tokens · [\d.]+ tokens/s · first after")
        self.find("#input").send_keys("And of Italy?", Keys.ENTER)
        self.until(lambda: len(self.all(".assistant")) == 2 and self.written())
        # The second question carried the first one along, and found it in the cache.
        self.assertIn("cached", self.all(".assistant .note")[-1].text)
        self.screenshot("conversation")
        self.find("#clear").click()
        self.assertEqual(self.all(".message"), [])

    def test_stop_button_ends_the_work(self):
        self.set("max_tokens", "4000")
        self.set("temperature", "0")
        self.find("#input").send_keys("Write a very long story about a dragon and a knight.", Keys.ENTER)
        self.until(lambda: self.find("#send").text == "Stop")
        self.find("#send").click()
        self.until(self.written)
        self.wait_for(lambda: self.server.metric("num_running_reqs") == 0)

    def test_errors_are_shown(self):
        self.set("temperature", "7")
        self.find("#input").send_keys("Hello", Keys.ENTER)
        self.until(lambda: self.all(".fault"))
        self.assertIn("temperature", self.find(".fault").text)
        self.screenshot("error")

    def test_nothing_from_elsewhere_and_no_complaints(self):
        self.set("max_tokens", "24")
        self.find("#input").send_keys("Write `code`", Keys.ENTER)
        self.until(lambda: self.all(".assistant") and self.written())
        complaints = [entry for entry in self.browser.get_log("browser")
                      if entry["level"] == "SEVERE" and "400" not in entry["message"]]
        self.assertEqual(complaints, [])
        addresses = self.browser.execute_script(
            "return performance.getEntriesByType('resource').map(entry => entry.name)")
        self.assertTrue(addresses)
        self.assertTrue(all(address.startswith(self.server.url) for address in addresses), addresses)

    def test_small_window_and_dark(self):
        self.browser.set_window_size(390, 800)
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {
            "features": [{"name": "prefers-color-scheme", "value": "dark"}]})
        self.set("max_tokens", "24")
        self.find("#input").send_keys("Hi!", Keys.ENTER)
        self.until(lambda: self.all(".assistant") and self.written())
        width = self.browser.execute_script(
            "return document.documentElement.scrollWidth - document.documentElement.clientWidth")
        self.assertEqual(width, 0)  # nothing sticks out sideways
        self.screenshot("small-dark")
        self.browser.set_window_size(1100, 800)
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})

    def test_no_cache_panel_without_tiers(self):
        self.assertFalse(self.find("#cache").is_displayed())


class CachePanelTest(ChatPageCase):
    """The tiers of the hierarchical cache."""

    folder = tempfile.TemporaryDirectory()
    arguments = ("--device", "cpu", "--enable-hierarchical-cache", "--max-total-tokens", "4096",
                 "--hicache-storage-backend", "file", "--hicache-storage-dir", folder.name)

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        cls.folder.cleanup()

    def rows(self):
        # At once: the rows are made anew every two seconds.
        return self.browser.execute_script(
            "return [...document.querySelectorAll('#tiers tr')].map(row => [...row.cells].map(cell => cell.textContent))")

    def test_tiers_and_decisions_are_shown(self):
        self.set("temperature", "0")
        self.set("max_tokens", "40")
        self.find("#input").send_keys("What is the capital of France?", Keys.ENTER)
        self.until(lambda: self.all(".assistant") and self.written())
        self.until(lambda: self.find("#cache").is_displayed())
        self.find("#cache summary").click()
        self.until(lambda: [row[0] for row in self.rows()] == ["device", "host", "file"] and
                   all(int(row[1]) > 0 for row in self.rows()))
        self.assertIn("pages loaded", self.find("#decisions").text)
        self.screenshot("cache")
        self.browser.set_window_size(390, 800)
        self.assertEqual(self.browser.execute_script(
            "return document.documentElement.scrollWidth - document.documentElement.clientWidth"), 0)
        self.browser.set_window_size(1100, 800)


if __name__ == "__main__":
    unittest.main()
