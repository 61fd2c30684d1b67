"""How a person uses the dashboard without a mouse: with the keyboard only, or with a thumb on a phone."""

from __future__ import annotations

from typing import Protocol

from playwright.async_api import Locator, Page, ViewportSize, expect

PHONE: ViewportSize = {"width": 390, "height": 844}
SMALLEST = 40
"""Pixels of a target that a thumb finds."""
MOST_TABS = 150
KEYS = {"Queues": "q", "Dead letters": "d", "Groups": "g", "Jobs": "j"}

HIDDEN = """() => {
  const element = document.activeElement, style = getComputedStyle(element);
  if (element === document.body) return '';
  const box = element.getBoundingClientRect();
  const top = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);
  const ring = style.outlineStyle === 'solid' && parseFloat(style.outlineWidth) >= 2;
  return ring && element.contains(top) ? '' : `${ring ? 'covered' : 'no ring'}: ${element.outerHTML.slice(0, 200)}`;
}"""
"""The element that has the focus, if a person does not see that: it has no ring, or something covers it."""
SMALL = """least => [...document.querySelectorAll('button, input, select, textarea, a.btn, a.node, a.facet, .bottom a')]
  .filter(element => element.checkVisibility())
  .map(element => [element.getBoundingClientRect(), element.outerHTML.slice(0, 120)])
  .filter(([box]) => box.height < least - 0.5 || box.width < least - 0.5)
  .map(([box, text]) => `${Math.round(box.width)} x ${Math.round(box.height)}: ${text}`)"""
"""The targets that are smaller than a thumb."""


class Hand(Protocol):
    """A way to use the page."""

    page: Page

    async def open(self, name: str) -> None:
        """Open one of the main pages."""
        ...

    async def press(self, target: Locator) -> None:
        """Press a button, or follow a link."""
        ...


class Keyboard:
    """Tab and Enter. Every element on the way shows that it has the focus."""

    def __init__(self, page: Page) -> None:
        self.page = page

    async def open(self, name: str) -> None:
        await self.page.keyboard.press("g")
        await self.page.keyboard.press(KEYS[name])
        await expect(self.page.get_by_role("heading", name=name, level=1)).to_be_visible()

    async def press(self, target: Locator) -> None:
        await expect(target).to_be_enabled()
        for _ in range(MOST_TABS):
            if await target.evaluate("element => element === document.activeElement"):
                break
            await self.page.keyboard.press("Tab")
            assert await self.page.evaluate(HIDDEN) == ""
        await expect(target).to_be_focused()
        await self.page.keyboard.press("Enter")


class Thumb:
    """Taps on a phone. No page scrolls sideways, and no target is too small."""

    def __init__(self, page: Page) -> None:
        self.page = page

    async def open(self, name: str) -> None:
        bottom = self.page.get_by_role("navigation", name="Main pages")
        tab = bottom.get_by_role("link", name=name.removesuffix(" letters"))
        if await tab.count():
            await self.press(tab)
        else:
            await self.press(bottom.get_by_role("button", name="More"))
            await self.page.get_by_role("option", name=name).tap()
        await expect(self.page.get_by_role("heading", name=name, level=1)).to_be_visible()

    async def press(self, target: Locator) -> None:
        await expect(target).to_be_enabled()
        assert await self.page.evaluate(SMALL, SMALLEST) == []
        assert await self.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        await target.tap()
