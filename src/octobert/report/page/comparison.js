// The speedups of all runs: a point with its interval for each 8-bit model.
page.draw("comparison", (root, { rows, raw }) => {
  const figure = root.querySelector("figure.speedups");
  const speedups = rows.map(({ ratio: [value, low, high], ...row }) => ({ ...row, value, low, high }));
  const longest = Math.max(...speedups.map((row) => row.model.length)) * 8 + 20;
  page.chart(figure, "Speedup over float of each model in each run, with intervals", (width) => ({
    marginLeft: Math.min(longest, width / 3),
    marginRight: Math.min(160, width / 4),
    x: { label: "× float", zero: true, grid: true },
    y: { label: null },
    fy: { label: null, domain: [...new Set(speedups.map((row) => row.run))] },
    marks: [
      Plot.axisFy({ textOverflow: "ellipsis", lineWidth: Math.min(160, width / 4) / 14 }),
      Plot.ruleX([1], { stroke: "var(--muted)", strokeDasharray: "4 3" }),
      Plot.ruleY(speedups, { x1: "low", x2: "high", y: "model", fy: "run", stroke: "var(--accent)", strokeWidth: 3 }),
      Plot.dot(speedups, { x: "value", y: "model", fy: "run", fill: "var(--accent)", r: 5 }),
      Plot.tip(speedups, Plot.pointer({
        x: "value", y: "model", fy: "run", fill: "var(--background)", stroke: "var(--line)",
        title: (row) => `${row.run}: ${row.model}\n${row.speedup} × ${row.reference}\n${row.machine}`,
      })),
    ],
  }));
  const header = ["run", "machine", "candidate", "reference", "batch", "sequence", "ratio", "low", "high"];
  figure.append(page.csv("speedups.csv", header, () => raw));
});
