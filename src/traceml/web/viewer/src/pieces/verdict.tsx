/** The answer: what it is, why, what to do next and what that would bring. */

import type { ComponentChildren } from "preact";
import type { Verdict } from "../schema";
import { ToneIcon } from "./tone";

interface Properties {
  verdict: Verdict;
  /** Further things to do, after the verdict's own. */
  further?: readonly string[];
  children?: ComponentChildren;
}

export function VerdictView({ verdict, further = [], children }: Properties) {
  const { severity, status, why, next, gain } = verdict;
  const steps = [...new Set(next === null ? further : [next, ...further])];
  return (
    <section class={`verdict tone-${severity}`} aria-label="Verdict" data-part tabIndex={-1}>
      <div class="verdict-what">
        <h2>
          <ToneIcon tone={severity} />
          {status}
        </h2>
        <p class="why">{why}</p>
        {children}
      </div>
      {(steps.length > 0 || gain) && (
        <div class="verdict-next">
          {steps.length > 0 && <h3>Next</h3>}
          {steps.map((step) => (
            <p key={step}>{step}</p>
          ))}
          {gain && (
            <p class="gain">
              <span>If fixed</span> {gain}
            </p>
          )}
        </div>
      )}
    </section>
  );
}
