// Tokens a second over the last minutes, as one small line.
import { number, say } from "./dom.js";

const NAMESPACE = "http://www.w3.org/2000/svg";
const WIDTH = 180;
const HEIGHT = 40;

export function draw(svg, caption, { rates, rate_seconds: seconds }) {
  const most = Math.max(...rates, 1);
  const points = rates.map((rate, index) => {
    const x = (index / (rates.length - 1)) * WIDTH;
    return `${x.toFixed(1)},${(HEIGHT - 1 - (rate / most) * (HEIGHT - 3)).toFixed(1)}`;
  });
  shape(svg, "polygon", "area").setAttribute("points", `0,${HEIGHT} ${points.join(" ")} ${WIDTH},${HEIGHT}`);
  shape(svg, "polyline", "line").setAttribute("points", points.join(" "));
  const now = rates.at(-2) ?? 0; // the newest span is not over yet
  const minutes = Math.round((rates.length * seconds) / 60);
  const text = `${number(now, 1)} tokens/s now, ${number(Math.max(...rates), 1)} at most in ${minutes} minutes`;
  say(caption, text);
  if (svg.getAttribute("aria-label") !== text) svg.setAttribute("aria-label", text);
}

function shape(svg, tag, name) {
  let found = svg.querySelector(`.${name}`);
  if (!found) {
    found = document.createElementNS(NAMESPACE, tag);
    found.setAttribute("class", name);
    found.setAttribute("vector-effect", "non-scaling-stroke");
    svg.append(found);
  }
  return found;
}
