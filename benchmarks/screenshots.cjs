// One page of a browser: {url, clicks, fill, file, height, width, until} on stdin; {title, text, pictures} on stdout.
const { chromium } = require('playwright-core');

const SWITCHES = ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run',
  '--disable-background-networking', '--disable-component-update', '--disable-sync'];

async function main(task) {
  const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: SWITCHES });
  // Long lists are drawn as far as they are in view: a tall window shows all there is to click.
  const width = task.width || 1100;
  let page = await browser.newPage({ viewport: { width, height: 1600 } });
  await page.goto(task.url, { waitUntil: 'networkidle' });
  await page.waitForTimeout(1500);
  if (task.fill) await page.locator('textarea').first().fill(task.fill);
  for (const text of task.clicks) {
    // A trailing mark takes the last of several: the button of a dialogue that has opened.
    const found = page.getByText(text.replace('!', ''), { exact: true });
    await (text.endsWith('!') ? found.last() : found.first()).click({ timeout: 10000 });
    await page.waitForTimeout(1500);
    page = page.context().pages().at(-1);  // some links open a page of their own
    await page.waitForLoadState('networkidle');
  }
  const pictures = await page.locator('img[src^="data:"]').evaluateAll(
    (all) => all.map((image) => [image.naturalWidth, image.naturalHeight]));
  if (task.file) {
    const size = { width, height: task.height };
    await page.setViewportSize(size);
    await page.waitForTimeout(1000);
    if (task.until) {
      const last = await page.getByText(task.until, { exact: true }).last().boundingBox();
      size.height = Math.min(size.height, Math.ceil(last.y + last.height + 40));
    }
    await page.screenshot({ path: task.file, clip: { x: 0, y: 0, ...size } });
  }
  const text = await page.locator('body').innerText();
  console.log(JSON.stringify({ title: await page.title(), text, pictures }));
  await browser.close();
}

let text = '';
process.stdin.on('data', (part) => { text += part; });
process.stdin.on('end', () => main(JSON.parse(text)).catch((error) => {
  console.error(error);
  process.exit(1);
}));
