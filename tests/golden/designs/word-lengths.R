# Word-length patterns of minimum aberration designs 2^(K-P), from the catalogue of the R package FrF2.
# Rscript word-lengths.R > word-lengths.json; written for FrF2 2.3-4 (R 4.x), which is GPL: its output alone is
# kept. Where R is not at hand, tests/unit/test_word_lengths.py holds the numbers against what must be true of
# them (MacWilliams' identities, exhaustive search of all fractions of 8 and 16 runs and of many of 32).
suppressMessages(library(FrF2))
stopifnot(inherits(catlg, "catlg"))
found <- list()
for (one in catlg) {                 # of each size the first is the best
  k <- one$nfac
  p <- round(k - log2(one$nruns))
  if (k > 15 || p < 1) next
  key <- paste(k, p, sep = ",")
  if (!is.null(found[[key]])) next
  words <- one$WLP[-(1:2)]           # FrF2 counts from words of length 1
  words <- c(words, rep(0, max(0, k - 2 - length(words))))[seq_len(k - 2)]
  stopifnot(sum(words) == 2^p - 1)
  found[[key]] <- list(k = k, p = p, words = words)
}
found <- found[order(sapply(found, `[[`, "k"), sapply(found, `[[`, "p"))]
rows <- sprintf("  \"%s\": [%s]", names(found),
                sapply(found, function(x) paste(x$words, collapse = ", ")))
cat("{\n \"what\": \"Word-length patterns (number of words of length 3, 4, ... K) of minimum aberration designs 2^(K-P)\",\n")
cat(" \"source\": \"Chen, Sun and Wu, International Statistical Review 61 (1993) 131-145, up to 64 runs; Xu,",
    "Technometrics 51 (2009) 440-450, above; as catalogued in the R package FrF2",
    as.character(packageVersion("FrF2")), "(first design of each size)\",\n")
cat(" \"patterns\": {\n", paste(rows, collapse = ",\n"), "\n }\n}\n", sep = "")
