/** Starts the viewer in the page's `<div id="app">`. */

/*!
Holds Apache ECharts (Apache License 2.0), ZRender (BSD 3-Clause), tslib (0BSD) and Preact:

The MIT License (MIT)

Copyright (c) 2015-present Jason Miller

Permission is hereby granted, free of charge, to any person obtaining a copy
of this software and associated documentation files (the "Software"), to deal
in the Software without restriction, including without limitation the rights
to use, copy, modify, merge, publish, distribute, sublicense, and/or sell
copies of the Software, and to permit persons to whom the Software is
furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all
copies or substantial portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE
SOFTWARE.
*/

import { options, render } from "preact";
import { startAnchors } from "./anchors";
import { App } from "./app";
import { redrawAll } from "./charts/canvas";
import { findPlace } from "./place";
import "./styles.css";
import "./comparison.css";
import { setPrinting, startTheme } from "./theme";

/** Everything is drawn before this returns: the printer does not wait for the next frame. */
function print(isPrinting: boolean): void {
  const later = options.debounceRendering;
  options.debounceRendering = (draw) => draw();
  setPrinting(isPrinting);
  redrawAll();
  if (later) options.debounceRendering = later;
  else delete options.debounceRendering;
}

startTheme();
startAnchors();
window.addEventListener("beforeprint", () => print(true));
window.addEventListener("afterprint", () => print(false));
render(<App place={findPlace()} />, document.getElementById("app")!);
