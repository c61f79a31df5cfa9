// Lighthouse's accessibility of pages, one JSON object a line: node lighthouse.mjs FOLDER_OF_LIGHTHOUSE CHROMIUM URL...
import { createRequire } from "node:module";

const [home, executablePath, ...urls] = process.argv.slice(2);
const { snapshot } = await import(`${home}/core/index.js`);
// Lighthouse keeps the processor busy for a second a page to learn how fast it is, which accessibility does not ask.
const { pageFunctions } = await import(`${home}/core/lib/page-functions.js`);
pageFunctions.computeBenchmarkIndex = () => 1000;
const puppeteer = createRequire(`${home}/package.json`)("puppeteer-core");
const browser = await puppeteer.launch({ executablePath, args: ["--no-sandbox"] });
try {
  const page = await browser.newPage();
  const screen = { formFactor: "desktop", screenEmulation: { disabled: true }, disableFullPageScreenshot: true };
  for (const url of urls) {
    const answer = await page.goto(url);
    const theme = await page.evaluate(() => document.documentElement.dataset.theme);
    const { lhr } = await snapshot(page, { flags: { onlyCategories: ["accessibility"], ...screen } });
    const audits = Object.values(lhr.audits).filter((audit) => audit.score !== null);
    const failed = audits.filter((audit) => audit.score < 1).map((audit) => audit.id);
    const score = Math.round(100 * lhr.categories.accessibility.score);
    console.log(
      JSON.stringify({ url, theme, status: answer.status(), score, passed: audits.length - failed.length, failed }),
    );
  }
} finally {
  await browser.close();
}
