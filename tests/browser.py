"""A real browser, for pages that are to work in one."""

import json
import shutil
import time
from contextlib import contextmanager

import pytest

# Nothing but the page: no first-run tour, no updates, no calls home.
FLAGS = (
    '--headless',
    '--no-sandbox',
    '--disable-gpu',
    '--disable-quic',
    '--no-first-run',
    '--disable-background-networking',
    '--disable-component-update',
    '--disable-sync',
)
# What a page brings along, and what the browser is made of.
OWN = ('data:', 'blob:', 'chrome:')


def _lacks() -> str | None:
    """What is missing to drive Chromium."""
    try:
        import selenium  # noqa: F401
    except ImportError:
        return 'selenium'
    for program in ('chromium', 'chromedriver'):
        if not shutil.which(program):
            return f'the program {program} (Debian: chromium-driver)'
    return None


needs_browser = pytest.mark.skipif(
    _lacks() is not None, reason=f'no browser: {_lacks()} is missing'
)


@contextmanager
def chromium(folder):
    """A browser whose profile lies in ``folder``."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which('chromium')
    for flag in (*FLAGS, f'--user-data-dir={folder}'):
        options.add_argument(flag)
    logs = {'browser': 'ALL', 'performance': 'ALL'}
    options.set_capability('goog:loggingPrefs', logs)
    service = Service(shutil.which('chromedriver'))
    driver = webdriver.Chrome(options=options, service=service)
    driver.set_script_timeout(60)
    try:
        yield driver
    finally:
        driver.quit()


def emulate(driver, width=1280, height=900, scheme='light'):
    """Let the browser have a screen of this size and colour scheme."""
    driver.execute_cdp_cmd(
        'Emulation.setDeviceMetricsOverride',
        dict(width=width, height=height, deviceScaleFactor=1, mobile=False),
    )
    feature = dict(name='prefers-color-scheme', value=scheme)
    driver.execute_cdp_cmd(
        'Emulation.setEmulatedMedia', dict(features=[feature])
    )


def wait_for(driver, script):
    """Until a script returns something that is true, which is returned."""
    end = time.monotonic() + 60
    while not (found := driver.execute_script(script)):
        assert time.monotonic() < end, script
        time.sleep(0.02)
    return found


def requests(driver) -> list[str]:
    """What the browser asked for since the last call, but data in the page
    and its own."""
    messages = [
        json.loads(entry['message'])['message']
        for entry in driver.get_log('performance')
    ]
    addresses = [
        message['params']['request']['url']
        for message in messages
        if message['method'] == 'Network.requestWillBeSent'
    ]
    return [a for a in addresses if not a.startswith(OWN)]


def names_missing(driver) -> list[str]:
    """Roles of what can be focused, but has no name for a screen reader."""
    nodes = driver.execute_cdp_cmd('Accessibility.getFullAXTree', {})['nodes']
    focusable = [
        node
        for node in nodes
        if not node.get('ignored')
        and any(
            p['name'] == 'focusable' and p['value'].get('value')
            for p in node.get('properties', ())
        )
    ]
    assert focusable
    return [
        node['role']['value']
        for node in focusable
        if not node.get('name', {}).get('value', '').strip()
    ]
