# Reference results for the analysis of strata, unbalanced data and types of sums of squares.
# Rscript reference.R > reference.json; needs lme4, lmerTest, pbkrtest and car.
suppressMessages({library(lme4); library(lmerTest); library(car)})
options(digits = 12, contrasts = c("contr.sum", "contr.poly"))
number <- function(x) formatC(x, digits = 12, format = "g", width = 1)
rows <- function(d) {
  paste0("{", paste(sprintf("\"%s\": [%s]", names(d), sapply(d, function(x)
    paste(if (is.numeric(x)) number(x) else paste0("\"", x, "\""), collapse = ", "))), collapse = ", "), "}")
}
out <- list()
put <- function(name, d) out[[name]] <<- sprintf(" \"%s\": %s", name, rows(d))
named <- function(a, column) cbind(term = gsub("[ ()]", "", rownames(a)), as.data.frame(a))

# 1. split-plot with lost runs: six settings of W at each level, S and T within
set.seed(42)
d <- expand.grid(T = c("c", "d"), S = c("a", "b"), plot = 1:12)
d$W <- ifelse(d$plot <= 6, "low", "high")
d$y <- round(20 + rep(rnorm(12, 0, 2), each = 4) + rnorm(48) + 1.5 * (d$S == "b") + 2 * (d$W == "high"), 3)
d <- d[-c(3, 9, 10, 22, 41), ]
for (n in c("W", "S", "T")) d[[n]] <- factor(d[[n]], levels = list(W = c("low", "high"), S = c("a", "b"), T = c("c", "d"))[[n]])
put("split_data", data.frame(plot = d$plot, W = as.character(d$W), S = as.character(d$S), T = as.character(d$T), y = d$y))
m <- lmer(y ~ W * S * T + (1 | plot), d, control = lmerControl(optCtrl = list(rhobeg = 1e-4, rhoend = 1e-12)))
a <- as.data.frame(anova(m, type = 3, ddf = "Satterthwaite"))
put("split_anova", data.frame(term = rownames(a), f = a[["F value"]], df_error = a$DenDF, p = a[["Pr(>F)"]]))
k <- as.data.frame(anova(m, type = 3, ddf = "Kenward-Roger"))
put("split_kenward_roger", data.frame(term = rownames(k), f = k[["F value"]], df_error = k$DenDF, p = k[["Pr(>F)"]]))
v <- as.data.frame(VarCorr(m))
put("split_variances", data.frame(setting = v$vcov[1], run = v$vcov[2]))
s <- summary(m)$coefficients
put("split_coefficients", data.frame(term = rownames(s), estimate = s[, 1], error = s[, 2]))

# 2. the same without random settings: types I, II and III
one <- anova(lm(y ~ W * S * T, d)); two <- Anova(lm(y ~ W * S * T, d), type = 2); three <- Anova(lm(y ~ W * S * T, d), type = 3)
names7 <- c("W", "S", "T", "W:S", "W:T", "S:T", "W:S:T")
put("types", data.frame(term = names7, one = one[names7, "Sum Sq"], two = two[names7, "Sum Sq"], three = three[names7, "Sum Sq"]))

# 3. three levels, unbalanced, with blocks
set.seed(7)
e <- expand.grid(B = c("x", "y", "z"), A = c("p", "q", "r"), block = 1:4)
e$y <- round(10 + rnorm(36) + as.integer(e$A) * as.integer(e$B) / 3 + e$block, 3)
e <- e[-c(2, 13, 14, 30), ]
put("blocks_data", data.frame(block = e$block, A = as.character(e$A), B = as.character(e$B), y = e$y))
f <- lm(y ~ factor(block) + A * B, e); t3 <- Anova(f, type = 3); t2 <- Anova(f, type = 2); t1 <- anova(f)
put("blocks_types", data.frame(term = c("A", "B", "A:B"), one = t1[c("A", "B", "A:B"), "Sum Sq"], two = t2[c("A", "B", "A:B"), "Sum Sq"],
  three = t3[c("A", "B", "A:B"), "Sum Sq"], p = t3[c("A", "B", "A:B"), "Pr(>F)"]))

# 4. multiplicity
p <- c(0.001, 0.008, 0.039, 0.041, 0.042, 0.06, 0.074, 0.205)
put("adjusted", data.frame(p = p, holm = p.adjust(p, "holm"), bh = p.adjust(p, "BH")))
cat("{\n", paste(c(sprintf(" \"made_by\": \"%s, lme4 %s, lmerTest %s, car %s\"", R.version.string, packageVersion("lme4"), packageVersion("lmerTest"),
  packageVersion("car")), unlist(out)), collapse = ",\n"), "\n}\n", sep = "")
